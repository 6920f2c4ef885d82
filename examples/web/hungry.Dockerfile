FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
RUN echo packing; head -c 600000000 /dev/zero | tail -c 600000000 > /dev/null
