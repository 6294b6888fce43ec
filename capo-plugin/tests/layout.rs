//! The frozen layout of the wire, on 64-bit machines: sizes, alignments and offsets. A change here is a change of the ABI.

#![cfg(target_pointer_width = "64")]

use std::mem::{align_of, offset_of, size_of};

use capo_plugin::abi::{
    AdvantageBox, AdvantagePoint, ComponentInfo, HostRef, MaskBox, MaskPoint, ObjectiveBox, ObjectivePoint, PluginRoot,
    PluginRoot_Ref, RecipeInfo, RecipePoint, WireBatch, WireError, WireLastLayer, WireOptimizerState,
};
use capo_plugin::abi_alignment::Alignment;
use capo_plugin::abi_collective::Collective;
use capo_plugin::abi_context::{Lent, RolloutContext};
use capo_plugin::abi_keys::{KeyInfo, KeysPoint};
use capo_plugin::abi_recipe::RecipePoint2;
use capo_plugin::abi_reward::{RewardBox, RewardPoint, WireCompletion, WireRollout};
use capo_plugin::abi_step_control::{MeasureRef, StepControlBox, StepControlPoint, WireGroup};
use capo_plugin::abi_sweep::{SweepPoint, SweepRange};
use capo_plugin::abi_top_k::SamplerTopK;
use capo_plugin::abi_traits::{MaskTraits, TraitsPoint};
use capo_plugin::abi_weight::{WeightBox, WeightPoint};
use capo_plugin::{
    DType, Denominator, DeviceKind, Dims, ErrorKind, Extension, Inputs, OptimizerInfo, OptimizerKind, Purpose,
    Reduction, Tensor,
};

macro_rules! size {
    ($($type:ty => $size:literal / $align:literal),* $(,)?) => {
        $(assert_eq!((size_of::<$type>(), align_of::<$type>()), ($size, $align), stringify!($type));)*
    };
}

macro_rules! offsets {
    ($type:ty: $($field:ident $offset:literal),* $(,)?) => {
        $(assert_eq!(offset_of!($type, $field), $offset, concat!(stringify!($type), ".", stringify!($field)));)*
    };
}

#[test]
fn sizes_and_alignments() {
    size! {
        Dims => 24 / 8,
        Inputs => 8 / 8,
        Reduction => 4 / 4,
        OptimizerInfo => 64 / 8,
        DType => 4 / 2,
        DeviceKind => 4 / 4,
        Tensor<'static> => 72 / 8,
        Extension<'static> => 16 / 8,
        WireError => 40 / 8,
        WireLastLayer<'static> => 368 / 8,
        WireOptimizerState<'static> => 216 / 8,
        ComponentInfo => 160 / 8,
        RecipeInfo => 128 / 8,
        AdvantagePoint => 16 / 8,
        ObjectivePoint => 16 / 8,
        MaskPoint => 16 / 8,
        RecipePoint => 8 / 8,
        AdvantageBox => 24 / 8,
        ObjectiveBox => 24 / 8,
        MaskBox => 24 / 8,
        HostRef<'static> => 16 / 8,
        WireBatch<'static> => 968 / 8,
        Purpose => 4 / 4,
        RewardPoint => 16 / 8,
        RecipePoint2 => 8 / 8,
        RewardBox => 24 / 8,
        WireCompletion<'static> => 88 / 8,
        WireRollout<'static> => 64 / 8,
        PluginRoot => 16 / 8,
        PluginRoot_Ref => 8 / 8,
        Denominator => 4 / 4,
        OptimizerKind => 4 / 4,
        ErrorKind => 4 / 4,
        KeysPoint => 8 / 8,
        KeyInfo => 104 / 8,
        WeightPoint => 16 / 8,
        WeightBox => 24 / 8,
        StepControlPoint => 16 / 8,
        StepControlBox => 24 / 8,
        MeasureRef<'static> => 16 / 8,
        WireGroup<'static> => 24 / 8,
        Lent<u8> => 16 / 8,
        RolloutContext => 200 / 8,
        SweepPoint => 8 / 8,
        SweepRange => 56 / 8,
        SamplerTopK => 48 / 8,
        Collective => 40 / 8,
        TraitsPoint => 8 / 8,
        MaskTraits => 4 / 4,
        Alignment => 8 / 8,
    }
}

#[test]
fn offsets_of_public_fields() {
    offsets!(Dims: completions 0, tokens 8, group_size 16);
    offsets!(OptimizerInfo: kind 0, learning_rate 8, beta1 16, beta2 24, eps 32, weight_decay 40, max_grad_norm 48, steps_taken 56);
    offsets!(DType: code 0, bits 1, lanes 2);
    offsets!(WireError: kind 0, message 8);
    offsets!(WireLastLayer<'static>: hidden 0, topk_ids 72, topk_logits 144, logsumexp 216, action_logits 288, vocab_size 360);
    offsets!(WireOptimizerState<'static>: weight 0, exp_avg 72, exp_avg_sq 144);
    offsets!(WireBatch<'static>: dims 0, step 24, max_steps 32, iteration 40, seed 48, sampling_temperature 56,
        sampling_top_p 60, sampling_top_k 64, loss_temperature 68, optimizer 72, reduction 136, denominator 140,
        max_completion_length 144, completion_ids 152, completion_mask 168, truncated 184, rewards 200, advantages 216,
        logps 232, losses 248, dloss_dlogp 272, old_logps 296, ref_logps 320, entropy 344, last_layer 368,
        optimizer_state 744);
    offsets!(WireCompletion<'static>: prompt 0, text 16, ids 32, truncated 48, answer 56, columns 72);
    offsets!(PluginRoot: abi_version 0, extension 8);
    offsets!(ComponentInfo: id 0, about 32, package 64, version 96, keys 128);
    offsets!(RecipeInfo: name 0, about 32, toml 64, package 96);
    offsets!(AdvantagePoint: components 0, create 8);
    offsets!(ObjectivePoint: components 0, create 8);
    offsets!(MaskPoint: components 0, create 8);
    offsets!(RecipePoint: recipes 0);
    offsets!(RewardPoint: components 0, create 8);
    offsets!(WireRollout<'static>: purpose 0, step 8, max_steps 16, seed 24, group_size 32, max_completion_length 40,
        completions 48);
    offsets!(KeysPoint: describe 0);
    offsets!(KeyInfo: name 0, about 32, default 64);
    offsets!(WeightPoint: components 0, create 8);
    offsets!(StepControlPoint: components 0, create 8);
    offsets!(WireGroup<'static>: name 0, parameters 16);
    offsets!(TraitsPoint: traits 0);
    offsets!(SweepPoint: ranges 0);
    offsets!(SweepRange: key 0, low 32, high 40, whole 48);
}

/// The names that `source` gives to types of the wire: structs with a checked layout, and objects.
fn wire_types(source: &str) -> Vec<String> {
    let name = |rest: &str| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap().to_owned();
    let (mut names, mut derived) = (Vec::new(), false);
    for line in source.lines() {
        derived |= line.starts_with("#[derive(StableAbi");
        if let Some(rest) = line.strip_prefix("pub struct ") {
            names.extend(derived.then(|| name(rest)));
            derived = false;
        } else if let Some(rest) = line.strip_prefix("pub type ") {
            names.push(name(rest));
        }
    }
    names
}

#[test]
fn every_type_of_the_wire_is_in_the_table() {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let table = include_str!("layout.rs");
    let mut count = 0;
    let files = [source.join("wire"), source].map(|folder| std::fs::read_dir(folder).unwrap());
    for entry in files.into_iter().flatten() {
        let path = entry.unwrap().path();
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for name in wire_types(&text) {
            let rows = [
                format!("        {name} => "),
                format!("        {name}<'static> => "),
                format!("        {name}<u8> => "),
            ];
            assert!(rows.iter().any(|row| table.contains(row)), "`{name}` of `{}` has no row", path.display());
            count += 1;
        }
    }
    assert_eq!(count, 49, "types of the wire");
}
