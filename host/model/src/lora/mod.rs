//! LoRA: trains a product of two small matrices beside the frozen weight of each target module,
//! `y = W x + b + s B A x`.
//!
//! Names, defaults and files are PEFT's. `W + s B A` is computed for an export only; the sampler
//! computes the same as the trainer. Merged weights would take memory for a copy, and rounding them
//! to bf16 would erase the small change of a young adapter.

mod base;
mod factors;
mod peft;
mod settings;

use std::collections::BTreeMap;
use std::path::{Path, absolute};

use anyhow::{Context, Result, bail};
use candle_core::{DType, Device, Tensor, Var};
use capo_system::memory::lacking;

use super::config::Config;
use super::files::ModelFiles;
use super::params::Params;

pub use base::Base;
pub use factors::Dropout;
pub(super) use factors::{DropoutMask, Factors};
pub use peft::{ADAPTER_CONFIG_FILE, ADAPTER_FILE, base_name};
use settings::{A, B, Matrix};
pub use settings::{LoraConfig, Targets};

/// Refuses factors of rank `r` beside these matrices that do not fit into memory.
fn check_memory<'a>(r: usize, matrices: impl Iterator<Item = &'a Matrix>) -> Result<()> {
    let count: u128 = matrices
        .map(|matrix| r as u128 * (matrix.outputs as u128 + matrix.inputs as u128))
        .sum();
    if let Some([needed, free]) = lacking(4 * count) {
        bail!(
            "an adapter of rank {r} takes {needed} of memory, and {free} are free \
             (lower `model.lora_r`, or name fewer `model.lora_target_modules`)"
        );
    }
    Ok(())
}

/// A LoRA adapter: factors that are trained beside a frozen model.
#[derive(Debug, Clone)]
pub struct Adapter {
    config: LoraConfig,
    base: Base,
    /// `MODULE.lora_A.weight` and `MODULE.lora_B.weight`, f32.
    params: Params,
}

impl Adapter {
    /// A fresh adapter of the model `config`. A is uniform in `±1/√in`, drawn from the stream
    /// `lora.init` of `seed` in the order of names. B is 0, so the adapter has no effect yet.
    /// Source: `peft.LoraLayer.reset_lora_parameters`.
    pub fn fresh(
        lora: LoraConfig,
        base: Base,
        config: &Config,
        seed: u64,
        device: &Device,
    ) -> Result<Self> {
        let modules = settings::modules("model.lora_target_modules", &lora.targets, config)?;
        check_memory(lora.r, modules.values())?;
        let mut rng = host_rng::stream(seed, "lora.init", &[]);
        let mut vars = BTreeMap::new();
        for (module, Matrix { outputs, inputs }) in modules {
            let bound = 1.0 / (inputs as f64).sqrt();
            let a: Vec<f32> = (0..lora.r * inputs)
                .map(|_| ((2.0 * host_rng::uniform(&mut rng) - 1.0) * bound) as f32)
                .collect();
            let a = Tensor::from_vec(a, (lora.r, inputs), device)?;
            vars.insert(format!("{module}.{A}"), Var::from_tensor(&a)?);
            vars.insert(
                format!("{module}.{B}"),
                Var::zeros((outputs, lora.r), DType::F32, device)?,
            );
        }
        Ok(Self {
            config: lora,
            base,
            params: vars.into_iter().collect(),
        })
    }

    /// Reads an adapter of the model `config` from `files`, which also name and hold its base.
    pub fn load(files: &ModelFiles, config: &Config, device: &Device) -> Result<Self> {
        let (lora, name) = peft::read_config(files)?;
        // An absolute path lets a saved adapter find its base from any directory.
        let name = if Path::new(&name).exists() {
            absolute(&name)?.to_string_lossy().into_owned()
        } else {
            name
        };
        let base = Base::of(&name, files)?;
        if let Some(known) = Base::read(files)? {
            known.check(&base)?;
        }
        let params = peft::read_params(files, &lora, config, device)?;
        Ok(Self {
            config: lora,
            base,
            params,
        })
    }

    /// Reads the factors from a checkpoint of the same run, over the same base.
    pub fn factors_of(
        &self,
        files: &ModelFiles,
        config: &Config,
        device: &Device,
    ) -> Result<Params> {
        if let Some(known) = Base::read(files)? {
            known.check(&self.base)?;
        }
        let (lora, _) = peft::read_config(files)?;
        peft::read_params(files, &lora, config, device)
    }

    /// Settings of the adapter.
    pub fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// The adapter's factors, which are the trained parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// A copy that shares no storage with the original.
    pub fn deep_copy(&self) -> Result<Self> {
        Ok(Self {
            params: self.params.deep_copy(DType::F32)?,
            ..self.clone()
        })
    }

    /// The factors of `module` in `dtype`; `None` if the module has no adapter.
    pub(super) fn factors(&self, module: &str, dtype: DType) -> Result<Option<Factors>> {
        let a = format!("{module}.{A}");
        if !self.params.contains(&a) {
            return Ok(None);
        }
        let a = self.params.get(&a)?.as_detached_tensor();
        let b = self.params.get(&format!("{module}.{B}"))?;
        let b = b.as_detached_tensor();
        Ok(Some(Factors::new(
            a.to_dtype(dtype)?,
            b.to_dtype(dtype)?,
            self.config.scale(),
        )))
    }

    /// Adds `s B A` to the weights of the base, in place.
    pub(super) fn add_to(&self, weights: &Params) -> Result<()> {
        for (name, a) in self.params.iter() {
            let Some(module) = name.strip_suffix(A) else {
                continue;
            };
            let a = a.as_detached_tensor();
            let b = self.params.get(&format!("{module}{B}"))?;
            let product = b.as_detached_tensor().matmul(&a)?;
            let weight = weights
                .get(&format!("{module}weight"))
                .context("the adapter belongs to another model")?;
            let change = product.affine(self.config.scale(), 0.0)?;
            weight.set(&(weight.as_detached_tensor() + change)?)?;
        }
        Ok(())
    }

    /// Writes `adapter_config.json`, `adapter_model.safetensors` and the record of the base into
    /// `directory`.
    pub fn save(&self, directory: &Path) -> Result<()> {
        peft::write(&self.config, self.base.name(), &self.params, directory)?;
        self.base.write(directory)
    }
}
