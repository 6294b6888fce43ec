//! Tests of models and optimizers through the public functions of the crate.

mod frozen_models;
mod model_company;
mod model_families;
mod model_files;
mod model_generate;
mod model_gguf;
mod model_golden;
mod model_gradients;
mod model_lora;
mod model_prompts;
mod model_threads;
mod optim;
mod optim_rules;
mod shared;
