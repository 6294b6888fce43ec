# One command per need; `just ci` is what the gate runs.

# Trains the embedded model with CAPO.
run:
    cargo build --release && target/release/host train --plugin libcapo.so

# All tests.
test:
    cargo test --workspace

# Everything that must pass before a change lands.
ci:
    .ci/run

# Speed of the curvature core, of the model's parts beside candle's own, and of calls across the plugin boundary.
bench:
    cargo bench -p capo-core
    cargo bench -p host-model --bench model
    cargo bench -p capo-plugin --bench boundary

# The GPU kernels, as far as no GPU is needed.
kernels:
    scripts/cuda-toolchain
    scripts/check-kernels

# Files that travel to a machine with a GPU, where `gpu-check run` runs them; docs/gpu.md.
gpu-pack:
    scripts/cuda-toolchain
    scripts/gpu-check pack

# Kills and hostile inputs, at length.
torture:
    cargo build --release --features full
    scripts/python-environment
    scripts/torture --long -n auto

# Formats every crate.
fmt:
    cargo fmt --all && cargo fmt --all --manifest-path plugins/examples/Cargo.toml

# Makes the embedded base model again and compares it with the committed one.
base:
    cargo build --release
    target/release/host sft --output-dir target/base
    cmp target/base/model.safetensors host/assets/tiny-arithmetic/model.safetensors

# The tables in README.md and docs/stability.md.
table:
    cargo build --release
    study/run

# Advisories, licences, sources; needs the network.
deny:
    cargo deny check
