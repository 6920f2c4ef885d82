"""What to tell the reverse proxy that has ports 80 and 443 already.

An image's layers and a build's log go through it: nothing may be buffered or bounded, and the name
that was asked for has to arrive.
"""

from typing import Final

_CADDY: Final = """{name} {{
    reverse_proxy 127.0.0.1:{port}
}}"""
_NGINX: Final = """location / {{
    proxy_pass http://127.0.0.1:{port};
    proxy_http_version 1.1; proxy_buffering off; proxy_request_buffering off;
    client_max_body_size 32m; proxy_read_timeout 60s;
    proxy_set_header Host $host; proxy_set_header X-Forwarded-Proto $scheme;
}}"""
_TRAEFIK: Final = """http:
  routers: {{pierhead: {{rule: "Host(`{name}`)", service: pierhead, tls: {{}}}}}}
  services: {{pierhead: {{loadBalancer: {{servers: [{{url: "http://127.0.0.1:{port}"}}]}}}}}}"""
_HAPROXY: Final = """frontend: use_backend pierhead if {{ hdr(host) -i {name} }}
backend pierhead
    timeout server 60s
    server pierhead 127.0.0.1:{port}"""
_KNOWN: Final = {
    "caddy": ("Caddyfile", _CADDY),
    "nginx": ("the server block of {name}", _NGINX),
    "traefik": ("a file of the file provider", _TRAEFIK),
    "haproxy": ("haproxy.cfg", _HAPROXY),
}


def proxy_lines(proxy: str, name: str, port: int) -> str:
    """Return what makes a proxy pass `name` on; for one that is not known, what it has to do."""
    if proxy not in _KNOWN:
        return f"pass https://{name} on to http://127.0.0.1:{port}, unbuffered, Host unchanged"
    where, lines = _KNOWN[proxy]
    return f"in {where.format(name=name)}:\n{lines.format(name=name, port=port)}"
