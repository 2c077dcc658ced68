# Exporter, enforcer and the `bailiff` command in one image. They need glibc because NVIDIA's driver does; NVIDIA's runtime
# mounts the driver into the container. Pin both base images by digest (`FROM …@sha256:…`) in your builds.
FROM docker.io/library/rust:1.95.0-slim-bookworm AS build
# Use the image's compiler, not the current stable release.
ENV RUSTUP_TOOLCHAIN=1.95.0
WORKDIR /source
COPY . .
RUN cargo build --release --locked --package bailiff-exporter --package bailiff-enforcer --package bailiff

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /source/target/release/bailiff /source/target/release/bailiff-exporter /source/target/release/bailiff-enforcer /usr/bin/
COPY config/kubernetes/base/rules.yaml /etc/bailiff/rules.yaml
# Sufficient for memory, utilization, owner and pod. For more, run as root with single capabilities (docs/kubernetes.md).
USER 65532:65532
EXPOSE 9836 9837
ENTRYPOINT ["/usr/bin/bailiff-exporter"]
