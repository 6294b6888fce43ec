//! The frozen layout of the wire, on 64-bit machines: sizes, alignments and offsets of its types,
//! and the methods of its objects in their order, in `layout.txt`. A change there is a change of
//! the ABI, so it has a switch of its own:
//! `CAPO_WRITE_LAYOUT=1 cargo test -p capo-plugin --test layout` writes the file.

#![cfg(target_pointer_width = "64")]

use std::mem::{align_of, offset_of, size_of};

use capo_plugin::wire::{
    AdvantageBox, ComponentInfo, EnvironmentBox, HostRef, KeyDoc, KeyLimits, KeyRange, MaskBox,
    MeasurementsRef, ObjectiveBox, PluginRoot, PluginRoot_Ref, PointList, RecipeInfo, RecipeList,
    RewardBox, StepControlBox, WeightBox, WireBatch, WireCompletion, WireEpisode, WireEpisodes,
    WireError, WireGroup, WireLastLayer, WireMessage, WireObservation, WireOptimizerState,
    WireRollout, WireToolCall, WireTurn,
};
use capo_plugin::{
    DType, Denominator, DeviceKind, Dims, ErrorKind, Extension, Inputs, OptimizerInfo,
    OptimizerKind, Purpose, Reduction, RolloutContext, SamplerTopK, Tensor, Traits,
};

/// The frozen layout.
const TABLE: &str = include_str!("layout.txt");

/// A line for each type: its name, its size and alignment, and the offset of each of its public
/// fields. A type that the table of a batch's fields makes has them in `OFFSETS`.
macro_rules! layouts {
    ($($type:ty $({ $($field:ident)* })? $(=> $offsets:ident)?),* $(,)?) => {
        [$({
            let own: &[(&str, usize)] = &[$($(
                (stringify!($field), offset_of!($type, $field))
            ),*)?];
            let fields = [own, $( <$type>::$offsets )?].concat();
            let fields: String = fields.iter().map(|(name, at)| format!(" {name} {at}")).collect();
            let size = size_of::<$type>();
            let align = align_of::<$type>();
            format!("{} {size}/{align}{fields}", stringify!($type))
        }),*]
    };
}

#[test]
fn the_layout_is_that_of_the_table() {
    let mut found = layouts! {
        PluginRoot { abi_version extension },
        PluginRoot_Ref, Extension<'static>,
        PointList<MaskBox> { components create },
        ComponentInfo { id about package version keys },
        KeyDoc { name about default range limits wanted choices },
        KeyLimits { at_least above at_most below infinite whole },
        KeyRange { low high whole },
        RecipeList { recipes },
        RecipeInfo { name about toml package },
        WireError { kind message },
        ErrorKind, HostRef<'static>,
        RewardBox, AdvantageBox, ObjectiveBox, MaskBox, WeightBox, StepControlBox, MeasurementsRef<'static>,
        Inputs, Traits, Reduction, Denominator, Purpose,
        Dims { completions tokens group_size },
        OptimizerInfo { kind learning_rate beta1 beta2 eps weight_decay max_grad_norm steps_taken },
        OptimizerKind,
        DType { code bits lanes },
        DeviceKind, Tensor<'static>,
        WireBatch<'static> => OFFSETS,
        WireLastLayer<'static> => OFFSETS,
        WireOptimizerState<'static> => OFFSETS,
        RolloutContext<'static>, SamplerTopK<'static>,
        WireRollout<'static> { purpose step max_steps seed group_size max_completion_length completions },
        WireCompletion<'static> { prompt text messages environment_reward ids truncated answer columns },
        WireGroup<'static> { name parameters },
        WireEpisode<'static> { number prompt answer columns group place seed },
        WireEpisodes<'static> { purpose step max_steps max_turns episodes },
        WireToolCall<'static> { name arguments },
        WireTurn<'static> { episode number text calls is_last },
        WireMessage { role name content },
        WireObservation { episode messages ended reward metrics },
        EnvironmentBox,
    }
    .to_vec();
    found.extend(objects());
    if std::env::var_os("CAPO_WRITE_LAYOUT").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/layout.txt");
        std::fs::write(path, format!("{}\n", found.join("\n"))).unwrap();
        return;
    }
    assert_eq!(found.as_slice(), TABLE.lines().collect::<Vec<_>>());
}

/// A line for each object of the wire, with the signatures of its methods. A table of functions has
/// no offsets that a test could take, and abi_stable compares it at loading alone.
fn objects() -> Vec<String> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/wire");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let mut found = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        for object in text.split("#[sabi_trait]\npub trait ").skip(1) {
            let (object, _) = object.split_once("\n}\n").unwrap();
            let words: Vec<&str> = object.split_whitespace().collect();
            found.push(words.join(" ").replace("( ", "(").replace(", )", ")"));
        }
    }
    found
}

/// The names that `source` gives to types of the wire: structs with a checked layout, and objects.
fn wire_types(source: &str) -> Vec<String> {
    let name = |rest: &str| {
        rest.split(|c: char| !c.is_alphanumeric() && c != '_')
            .next()
            .unwrap()
            .to_owned()
    };
    let mut names = Vec::new();
    let mut derived = false;
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
    let mut count = 0;
    let folders = [source.join("wire"), source.join("batch"), source];
    let files = folders.map(|folder| std::fs::read_dir(folder).unwrap());
    for entry in files.into_iter().flatten() {
        let path = entry.unwrap().path();
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        for name in wire_types(&text) {
            let row = TABLE
                .lines()
                .find(|row| row.split([' ', '<']).next() == Some(&name));
            assert!(row.is_some(), "`{name}` of `{}` has no row", path.display());
            count += 1;
        }
    }
    // The three that the table of a batch's fields makes are not in the text.
    assert_eq!(count, 42, "types of the wire");
}
