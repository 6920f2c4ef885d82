ARG REGISTRY
FROM $REGISTRY/me/base:1
COPY busybox /bin/busybox
