//! Decoders with trainable weights or adapters: loading and saving, the forward pass,
//! log-probabilities, gradients, generation; the optimizers of their weights.
//!
//! The model is implemented here because the fused operations of `candle-transformers` have no
//! backward pass. Weights have their Hugging Face names and are 32-bit floats. Activations may have
//! another dtype. A caller can tell some errors apart with [`Error::of`].

mod backward;
mod captured;
mod config;
mod decoder;
pub mod device;
mod divergence;
pub mod embedded;
mod error;
mod family;
mod files;
mod forward;
pub mod frozen;
mod generate;
mod gguf;
mod gradients;
mod groups;
pub mod hub;
mod kv_cache;
mod linear;
mod lora;
mod narrowed;
pub mod optim;
mod outputs;
mod packed;
mod parallel;
mod params;
mod partner;
mod policy;
mod rotary;
mod sampling;
pub mod schedule;
mod sequences;
mod shapes;
mod size;
mod slots;
mod tensors;
pub mod update;

pub use captured::Capture;
pub use config::{Biases, CONFIG_FILE, Config};
pub use divergence::Heads;
pub use error::Error;
pub use family::Family;
pub use files::ModelFiles;
pub use forward::Forward;
pub use generate::{Generation, sampled};
pub use gradients::Gradients;
pub use groups::{Group, groups};
pub use host_ops as ops;
pub use host_ops::Truncation;
pub use lora::{ADAPTER_CONFIG_FILE, ADAPTER_FILE, Adapter, Base, Dropout, LoraConfig, Targets};
pub use outputs::{LastLayerData, LastLayerOutputs, LastLayerTensors, TokenOutputs, Wants};
pub use params::{INDEX_FILE, Params, WEIGHTS_FILE, save_tensors};
pub use partner::{Partner, Reply, SampledTokens};
pub use policy::Policy;
pub use rotary::{Rotary, Scaling};
pub use sampling::SamplingParams;
pub use sequences::Sequences;
pub use shapes::{EMBEDDING, FINAL_NORM, HEAD, head_name, shapes};
pub use size::Shape;
pub use tensors::TensorFile;

#[cfg(test)]
mod tests;
