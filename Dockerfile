# Exporter, enforcer and the users' command in one image. They need glibc, since NVIDIA's driver does; the driver itself is put
# into the container by NVIDIA's runtime. Pin both bases by digest (`FROM …@sha256:…`) where you build it.
FROM docker.io/library/rust:1.95.0-slim-bookworm AS build
# The image's compiler, not whatever is stable on the day of the build.
ENV RUSTUP_TOOLCHAIN=1.95.0
WORKDIR /source
COPY . .
RUN cargo build --release --locked --package bailiff-exporter --package bailiff-enforcer --package bailiff

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /source/target/release/bailiff /source/target/release/bailiff-exporter /source/target/release/bailiff-enforcer /usr/bin/
COPY config/kubernetes/base/rules.yaml /etc/bailiff/rules.yaml
# Enough for memory, utilization, owner and pod. Who needs a capability is started as root with that alone (docs/kubernetes.md).
USER 65532:65532
EXPOSE 9836 9837
ENTRYPOINT ["/usr/bin/bailiff-exporter"]
