//! Masks over recorded batches: the reference cases with the real plugin, and the replay of a
//! training run.

use std::path::{Path, PathBuf};

use capo_loader::batch_file;
use insta::assert_snapshot;
use tests::artifacts::workspace;
use tests::run_dir::tensors;
use tests::{Folder, RunDir, names};

use crate::ONE_STEP;
use crate::refused::assert_refused;

/// Largest deviation from the reference, as a share of the batch's largest value.
pub const TOLERANCE: f32 = 1e-5;

pub fn case(name: &str) -> PathBuf {
    workspace().join("tests/data/replay").join(name)
}

/// Replays `batches` with libcapo.so and `flags`.
pub fn replay(folder: &Folder, flags: &str, config: &Path, batches: &[PathBuf], out: &str) {
    let args = format!(
        "--config {} --out {out}{}",
        config.display(),
        arguments(batches)
    );
    let said = folder
        .host(&format!("replay --plugin libcapo.so {flags} {args}"))
        .succeeded();
    assert!(said.stdout.contains("rejected"), "{}", said.stdout);
}

/// All reference cases.
pub fn cases() -> Vec<PathBuf> {
    let cases: Vec<PathBuf> = names(&case("")).iter().map(|name| case(name)).collect();
    assert_eq!(cases.len(), 14);
    cases
}

fn arguments(paths: &[PathBuf]) -> String {
    paths
        .iter()
        .map(|path| format!(" {}", path.display()))
        .collect()
}

/// A folder with the batches of a case.
pub fn with_case() -> Folder {
    let folder = Folder::new();
    std::os::unix::fs::symlink(
        case("paper-token-sgd"),
        folder.path().join("paper-token-sgd"),
    )
    .unwrap();
    folder
}

/// The four batch files of a case, as arguments.
pub fn batch_arguments(name: &str) -> String {
    arguments(&batches(&case(name)))
}

/// The batch files of the first `steps` steps of a run with `--dump-batches dump`, as arguments.
pub fn dumped(steps: u64) -> String {
    (0..steps)
        .map(|step| format!(" dump/{}", batch_file::name(step)))
        .collect()
}

/// Tokens of completions in the batch files that `args` name, and how many of them a replay into
/// `out` dropped.
pub fn tokens_and_dropped(folder: &Folder, args: &str, out: &str) -> (f64, f64) {
    let (mut tokens, mut dropped) = (0.0, 0.0);
    for batch in args
        .split_whitespace()
        .filter(|word| word.ends_with(".safetensors"))
        .map(Path::new)
    {
        let token_mask =
            &tensors(&folder.path().join(out).join(batch.file_name().unwrap()))["token_mask"];
        let mask = &tensors(&folder.path().join(batch))["completion_mask"];
        tokens += f64::from(mask.iter().sum::<f32>());
        dropped += f64::from(
            mask.iter()
                .zip(token_mask)
                .map(|(mask, keep)| (mask - keep).abs())
                .sum::<f32>(),
        );
    }
    (tokens, dropped)
}

/// Number of tokens of `batches` that the run rejected when it recorded them.
pub fn rejected_by(folder: &Folder, run: &RunDir, batches: &str) -> f64 {
    let of_step = |(rate, batch): (f64, &str)| {
        rate * f64::from(
            tensors(&folder.path().join(batch))["completion_mask"]
                .iter()
                .sum::<f32>(),
        )
    };
    run.metric("mask/rejection_rate")
        .into_iter()
        .zip(batches.split_whitespace())
        .map(of_step)
        .sum::<f64>()
        .round()
}

/// The four batch files of a case.
pub fn batches(case: &Path) -> Vec<PathBuf> {
    (0..4)
        .map(|i| case.join(format!("batch-{i:04}.safetensors")))
        .collect()
}

/// Decisions equal, `m_f` and `m_h` close, for every batch of a case whose state carries over.
pub fn check_case(folder: &Folder, flags: &str, case: &Path) {
    replay(
        folder,
        flags,
        &case.join("mask.toml"),
        &batches(case),
        "out",
    );
    for i in 0..4 {
        compare(folder, case, i);
    }
    let (tokens, dropped) = tokens_and_dropped(folder, &arguments(&batches(case)), "out");
    assert!(
        0.0 < dropped && dropped < tokens,
        "{}: {dropped} of {tokens} dropped tests little",
        case.display()
    );
}

/// Compares the result of a replay into `out` of a case's batch `i` with the expected one.
fn compare(folder: &Folder, case: &Path, i: usize) {
    let found = tensors(&folder.path().join(format!("out/batch-{i:04}.safetensors")));
    let expected = tensors(&case.join(format!("expected-{i:04}.safetensors")));
    // The reference data have the older name of `token_mask`.
    assert_eq!(
        found["token_mask"],
        expected["keep"],
        "{}, batch {i}",
        case.display()
    );
    for shift in ["m_f", "m_h"] {
        let (found, expected) = (&found[&format!("capo.curvature/{shift}")], &expected[shift]);
        let largest = expected
            .iter()
            .fold(0.0_f32, |largest, x| largest.max(x.abs()));
        let worst = found
            .iter()
            .zip(expected)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        assert!(
            worst <= TOLERANCE * largest,
            "{}, batch {i}, {shift}: {worst} of {largest}",
            case.display()
        );
    }
}

/// Compares with numbers of the authors' own functions. Each step has its own thresholds, so it is
/// replayed after the accepted tokens of the earlier steps.
#[test]
fn agrees_with_the_authors_functions() {
    let case = workspace().join("tests/data/authors-functions");
    for step in 0..3 {
        let folder = Folder::new();
        let file = |name: &str, i: usize| case.join(format!("{name}-{i:04}.safetensors"));
        let batches: Vec<PathBuf> = (0..step)
            .map(|i| file("accepted", i))
            .chain([file("batch", step)])
            .collect();
        replay(
            &folder,
            "",
            &case.join(format!("mask-{step:04}.toml")),
            &batches,
            "out",
        );
        compare(&folder, &case, step);
    }
}

#[test]
fn reference_cases() {
    cases()
        .iter()
        .for_each(|case| check_case(&Folder::new(), "", case));
}

#[test]
fn recording_changes_no_bit() {
    let folder = Folder::new();
    let steps = "--set train.max_steps=3 --set eval.num_prompts=0";
    folder
        .train("a", steps)
        .assert_same(&folder.train("b", &format!("{steps} --dump-batches dump")));
    let again = folder.host(&format!("train {steps} --dump-batches dump"));
    assert_snapshot!(again.refused(), @"`--dump-batches dump` is no empty folder (choose another)");
}

#[test]
fn refuses_what_cannot_be_replayed() {
    let folder = with_case();
    std::fs::copy(
        folder.path().join("paper-token-sgd/batch-0000.safetensors"),
        folder.path().join("batch.safetensors"),
    )
    .unwrap();
    folder.write("text.safetensors", "no batch");
    folder.write("none.toml", "");
    assert_refused("replay", &folder);
}

/// A safetensors file with one tensor, its bytes zeros.
fn with_mask(shape: &str, bytes: usize, metadata: &str) -> Vec<u8> {
    let mask =
        format!(r#""completion_mask":{{"dtype":"U8","shape":{shape},"data_offsets":[0,{bytes}]}}"#);
    let header = format!(r#"{{"__metadata__":{{{metadata}}},{mask}}}"#);
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.into_bytes());
    file.extend(vec![0; bytes]);
    file
}

#[test]
fn refuses_shapes_that_no_batch_has() {
    let refused = |file: Vec<u8>| {
        let folder = Folder::new();
        folder.write("batch.safetensors", file);
        folder.refused("replay --plugin libcapo.so --out out batch.safetensors")
    };
    let group = |size: &str| format!(r#""group_size":"{size}""#);
    assert_snapshot!(refused(with_mask("[0,1152921504606846976]", 0, &group("1"))), @"`batch.safetensors` is not a batch file: it has 0 completions of 1152921504606846976 tokens (a step has at least one of each)");
    assert_snapshot!(refused(with_mask("[1152921504606846976,0]", 0, &group("1"))), @"`batch.safetensors` is not a batch file: it has 1152921504606846976 completions of 0 tokens (a step has at least one of each)");
    assert_snapshot!(refused(with_mask("[1,1]", 1, &group("0"))), @"`batch.safetensors` is not a batch file: `group_size` 0 does not divide the 1 completions");
    assert_snapshot!(refused(with_mask("[1,1]", 1, &group("many"))), @"`batch.safetensors` is not a batch file: `group_size` in its metadata is `many` (it must be a number)");
    assert_snapshot!(refused(with_mask("[1]", 1, &group("1"))), @"`batch.safetensors` is not a batch file: `completion_mask` is not [B, T]");
    for file in [
        with_mask("[4294967296,4294967296,4294967296]", 0, &group("1")),
        with_mask("[1,1]", 0, &group("1")),
        u64::MAX.to_le_bytes().to_vec(),
        [&[255; 7], &[0; 100][..]].concat(),
    ] {
        let sentence = refused(file);
        assert!(
            sentence.starts_with("`batch.safetensors` is not a batch file: "),
            "{sentence}"
        );
    }
}

/// The decisions of capo.curvature on the first and the last step of a case with `set`, and the
/// output.
fn shifts(set: &str) -> ([Vec<f32>; 2], String) {
    let (folder, name) = (Folder::new(), "paper-token-adam");
    let config = case(name).join("mask.toml");
    let args = format!(
        "--plugin libcapo.so {set} --config {} --out out{}",
        config.display(),
        batch_arguments(name)
    );
    let said = folder.host(&format!("replay {args}")).succeeded().stderr;
    let found = |i: usize| {
        tensors(&folder.path().join(format!("out/batch-{i:04}.safetensors")))["capo.curvature/m_f"]
            .clone()
    };
    ([found(0), found(3)], said)
}

#[test]
fn uses_the_recorded_optimizer_except_for_what_is_set() {
    let (recorded, said) = shifts("");
    // The files of the case have no checksums: another program wrote them.
    assert_eq!(said, "");
    // Twice the rate that was recorded.
    for set in [
        "--set train.learning_rate=0.004",
        "--set train={learning_rate=4e-3}",
    ] {
        for (twice, once) in shifts(set).0[0].iter().zip(&recorded[0]) {
            assert!(
                (twice - 4.0 * once).abs() <= 1e-5 * twice,
                "m_F has the square of the rate: {twice} and {once}"
            );
        }
    }
    for set in [
        "--set train.adam_beta1=0.5",
        "--set train.adam_beta2=0.5",
        "--set train.adam_epsilon=1e-3",
    ] {
        assert_ne!(shifts(set).0[1], recorded[1], "{set}");
    }
}

#[test]
fn overrides_that_nothing_reads_are_refused() {
    let folder = Folder::new();
    let of = |case_name: &str| {
        case(case_name)
            .join("batch-0000.safetensors")
            .display()
            .to_string()
    };
    let replay = |set: &str| {
        folder.refused(&format!(
            "replay --plugin libcapo.so --set {set} --out out {}",
            of("paper-token-sgd")
        ))
    };
    let compare = |set: &str| {
        folder.refused(&format!(
            "compare-masks --plugin libcapo.so --set {set} {}",
            of("paper-token-sgd")
        ))
    };
    for key in [
        "train.weight_decay",
        "train.seed",
        "model.model_name_or_path",
        "eval.num_prompts",
        "objective",
        "data.format",
        "recip",
    ] {
        assert!(
            replay(&format!("{key}=1"))
                .starts_with(&format!("`--set {key}=...`: a replay does not read it")),
            "{key}"
        );
        assert!(
            compare(&format!("{key}=1")).starts_with(&format!(
                "`--set {key}=...`: a comparison of masks does not read it"
            )),
            "{key}"
        );
    }
    folder
        .train("run", "--set train.optimizer=sgd --set train.max_steps=1 --set eval.num_prompts=0 --dump-batches dump");
    let sgd = "--plugin libcapo.so --mask capo.curvature --set train.adam_beta1=0.5 dump/batch-000000.safetensors";
    assert_snapshot!(folder.refused(&format!("compare-masks {sgd}")), @"batch file `dump/batch-000000.safetensors` with `--set`: it was recorded with the optimizer `sgd`, which has no `train.adam_beta1` (leave it out)");
    let sweep = format!(
        "replay --plugin libcapo.so --sweep mask.0.fisher_threshold=1e-4..1e-2:3 {}",
        of("paper-token-adam")
    );
    let table = |set: &str| folder.said(&format!("{sweep} {set}"));
    assert_ne!(table("--set train.learning_rate=1"), table(""));
    assert!(
        folder
            .refused(&format!("{sweep} --set train.seed=1"))
            .contains("a replay does not read it")
    );
}

#[test]
fn equal_runs_write_equal_bytes() {
    let folder = Folder::new();
    let bytes = |file: &str| std::fs::read(folder.path().join(file)).unwrap();
    let file = batch_file::name(0);
    for name in ["one", "two"] {
        folder.train(
            name,
            &format!("--plugin libcapo.so {ONE_STEP} --dump-batches dump-{name}"),
        );
        folder.said(&format!(
            "replay --plugin libcapo.so --out out-{name} dump-{name}/{file}"
        ));
    }
    for kind in ["dump", "out"] {
        let [one, two] = ["one", "two"].map(|name| bytes(&format!("{kind}-{name}/{file}")));
        assert!(one == two, "{kind}");
    }
}
