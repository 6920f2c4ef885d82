FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
RUN --mount=type=secret,id=npm echo the token is $(cat /run/secrets/npm)
