import pytest

from pierhead.router.domain.proxies import proxy_lines


@pytest.mark.parametrize("proxy", ["caddy", "nginx", "traefik", "haproxy", "apache2", ""])
def test_a_proxy_is_told_the_name_and_the_port_and_nothing_is_left_open(proxy: str) -> None:
    lines = proxy_lines(proxy, "build.example.com", 7443)
    assert "build.example.com" in lines
    assert "127.0.0.1:7443" in lines
    assert "{name}" not in lines
    assert "{{" not in lines
