//! Step controls in a run: a scale of 1 changes nothing, 0 keeps every weight, groups are scaled
//! separately, and several controls multiply. Also the measurements of `train.measure_step`.

use std::collections::BTreeMap;

use insta::assert_snapshot;
use tests::{Folder, RunDir, artifacts};

use crate::misbehaviour::{Point, all_committed};
use crate::split;

/// Four steps at a rate that moves the policy, the first one included.
const FOUR_STEPS: &str = "--set train.max_steps=4 --set eval.num_prompts=0 --set train.save_steps=1 \
    --set train.lr_scheduler_type=constant --set train.warmup_ratio=0 --set train.learning_rate=1e-3";
const FIRST_STEP: &str = "--stop-after 1";

/// The arguments of a run with step controls of libmisbehave.so, which do what their settings say.
fn told(controls: &[&str], extra: &str) -> String {
    let tables: Vec<String> = controls
        .iter()
        .map(|keys| format!("{{use=\"misbehave.control\",{keys}}}"))
        .collect();
    format!(
        "--plugin libmisbehave.so --set step_control=[{}] {FOUR_STEPS} {extra}",
        tables.join(",")
    )
}

fn weights(run: &RunDir) -> BTreeMap<String, Vec<f32>> {
    run.tensors("model.safetensors")
}

/// The weights that the embedded model starts from.
pub(crate) fn fresh() -> BTreeMap<String, Vec<f32>> {
    tests::run_dir::tensors(
        &artifacts::workspace().join("host/assets/tiny-arithmetic/model.safetensors"),
    )
}

/// The names of the tensors that differ by a bit.
fn moved<'a>(a: &'a BTreeMap<String, Vec<f32>>, b: &BTreeMap<String, Vec<f32>>) -> Vec<&'a str> {
    a.iter()
        .filter(|(name, values)| b[*name] != **values)
        .map(|(name, _)| name.as_str())
        .collect()
}

fn assert_near(found: f64, expected: f64, tolerance: f64) {
    assert!(
        (found - expected).abs() <= tolerance * expected.abs(),
        "{found}, expected {expected}"
    );
}

#[test]
fn a_scale_of_one_changes_no_bit() {
    let folder = Folder::new();
    let plain = folder.train("plain", &told(&[], ""));
    let ones = folder.train("ones", &told(&["sin=\"none\"", "sin=\"measures\""], ""));
    assert_eq!(plain.weights(), ones.weights());
    for name in ["loss", "reward", "entropy", "grad_norm"] {
        assert_eq!(plain.metric(name), ones.metric(name), "{name}");
    }
    for name in [
        "misbehave.control/applied",
        "misbehave.control#2/applied",
        "step_control/applied",
    ] {
        assert_eq!(ones.metric(name), [1.0; 4], "{name}");
    }
}

#[test]
fn a_scale_of_zero_keeps_every_weight() {
    let folder = Folder::new();
    let still = folder.train("still", &told(&["sin=\"none\",scale=0.0"], ""));
    assert_eq!(moved(&weights(&still), &fresh()), [""; 0]);
    assert_eq!(still.metric("step_control/applied"), [0.0; 4]);
    assert_eq!(still.metric("step_skipped"), [0.0; 4]);
    let moments = still.tensors("optimizer.safetensors");
    assert_eq!(
        moments["steps_taken"],
        [4.0],
        "the moments stay as the steps made them"
    );
    assert!(
        moments["exp_avg/lm_head.weight"]
            .iter()
            .any(|moment| *moment != 0.0)
    );
}

#[test]
fn restores_the_moments_if_a_control_asks() {
    let folder = Folder::new();
    let none = "sin=\"none\",scale=0.0";
    let back = folder.train(
        "back",
        &told(&["sin=\"none\",restores_moments=true", none], ""),
    );
    assert_eq!(moved(&weights(&back), &fresh()), [""; 0]);
    let moments = back.tensors("optimizer.safetensors");
    assert!(
        moments.values().flatten().all(|moment| *moment == 0.0),
        "steps taken included"
    );
    assert_eq!(back.metric("step_skipped"), [1.0; 4]);
    // A shortened step counts as a step.
    let half = folder.train(
        "half",
        &told(&["sin=\"none\",restores_moments=true,scale=0.5"], ""),
    );
    let other = folder.train("other", &told(&["sin=\"none\",scale=0.5"], ""));
    assert_eq!(half.weights(), other.weights());
}

#[test]
fn scales_a_single_group() {
    let folder = Folder::new();
    let (before, plain) = (
        fresh(),
        weights(&folder.train("plain", &told(&[], FIRST_STEP))),
    );
    let of_group = |group: &str, tensor: &str| match group.strip_prefix("block.") {
        Some(block) => tensor.starts_with(&format!("model.layers.{block}.")),
        None if group == "embedding" => tensor == "model.embed_tokens.weight",
        None => ["lm_head.weight", "model.norm.weight"].contains(&tensor),
    };
    for group in ["embedding", "block.0", "block.1", "last_layer"] {
        let run = folder.train(
            group,
            &told(
                &[&format!("sin=\"none\",scale=0.25,group=\"{group}\"")],
                FIRST_STEP,
            ),
        );
        let scaled = weights(&run);
        for (tensor, values) in &scaled {
            for ((w, w0), w1) in values.iter().zip(&before[tensor]).zip(&plain[tensor]) {
                let expected = if of_group(group, tensor) {
                    w0 + 0.25 * (w1 - w0)
                } else {
                    *w1
                };
                assert_eq!(*w, expected, "{group}: {tensor}");
            }
        }
        let applied = run.metric("step_control/applied")[0];
        assert!(0.3 < applied && applied < 1.0, "{group}: {applied}");
    }
    let sentence = folder
        .host(&format!(
            "train {}",
            told(&["sin=\"none\",group=\"head\""], "")
        ))
        .failed();
    assert!(
        sentence.ends_with("component `misbehave.control`: there is no group `head`"),
        "{sentence}"
    );
}

#[test]
fn controls_multiply_and_see_what_earlier_ones_left() {
    let folder = Folder::new();
    let plain = folder.train("plain", &told(&["sin=\"measures\""], FIRST_STEP));
    let both = folder.train(
        "both",
        &told(
            &["sin=\"none\",scale=0.5", "sin=\"measures\",scale=0.5"],
            FIRST_STEP,
        ),
    );
    assert_eq!(both.metric("misbehave.control/applied"), [0.5]);
    assert_eq!(both.metric("misbehave.control#2/applied"), [0.5]);
    assert_eq!(both.metric("step_control/applied"), [0.25]);
    let number = |run: &RunDir, name: &str| run.metric(name)[0];
    for (name, power) in [
        ("norm", 1),
        ("learning_rate", 1),
        ("fisher", 2),
        ("norm/block.1", 1),
    ] {
        let (whole, half) = (
            format!("misbehave.control/{name}"),
            format!("misbehave.control#2/{name}"),
        );
        assert_near(
            number(&both, &half),
            0.5_f64.powi(power) * number(&plain, &whole),
            1e-4,
        );
    }
    let (before, whole, quarter) = (fresh(), weights(&plain), weights(&both));
    for (tensor, values) in &quarter {
        for ((w, w0), w1) in values.iter().zip(&before[tensor]).zip(&whole[tensor]) {
            assert!(
                (w - (w0 + 0.25 * (w1 - w0))).abs() <= 3e-7 * w0.abs().max(1e-3),
                "{tensor}"
            );
        }
    }
}

/// A control that measures half of a step gets the number that a second control gets of the step
/// that is left, and its measurement leaves the whole step as it was.
#[test]
fn measures_a_part_of_a_step() {
    let folder = Folder::new();
    let halved = folder.train(
        "halved",
        &told(&["sin=\"none\",scale=0.5", "sin=\"measures\""], FIRST_STEP),
    );
    let whole = folder.train("whole", &told(&["sin=\"measures\""], FIRST_STEP));
    assert_eq!(
        whole.metric("misbehave.control/kl_of_half_step"),
        halved.metric("misbehave.control#2/kl")
    );
    let free = folder.train("free", &format!("{FOUR_STEPS} {FIRST_STEP}"));
    assert_eq!(whole.weights(), free.weights());
}

#[test]
fn measurements_are_consistent() {
    let folder = Folder::new();
    let whole = folder.train("whole", &told(&["sin=\"measures\""], FIRST_STEP));
    let number = |run: &RunDir, name: &str| run.metric(&format!("misbehave.control/{name}"))[0];
    let groups = ["embedding", "block.0", "block.1", "last_layer"];
    let norm = groups
        .map(|group| number(&whole, &format!("norm/{group}")).powi(2))
        .iter()
        .sum::<f64>()
        .sqrt();
    assert_near(number(&whole, "norm"), norm, 1e-12);
    let count: f64 = groups
        .map(|group| number(&whole, &format!("parameters/{group}")))
        .iter()
        .sum();
    assert_eq!(count, fresh().values().map(Vec::len).sum::<usize>() as f64);
    // Adam's first step has the same length in every weight whose gradient is not tiny.
    assert!(
        norm < 1e-3 * count.sqrt() && norm > 0.5e-3 * count.sqrt(),
        "{norm}"
    );
    let (kl, head) = (number(&whole, "kl"), number(&whole, "last_layer_kl"));
    assert!(kl > 1e-3 && head > 0.0 && head < 0.1 * kl, "{kl} {head}");
    assert_ne!(number(&whole, "kl_of_one"), number(&whole, "kl_of_quarter"));
    // If the work is split in another way, sums are added in another order.
    for size in [24, 16, 6] {
        let extra = format!("{} {FIRST_STEP}", split(size));
        let parts = folder.train(&size.to_string(), &told(&["sin=\"measures\""], &extra));
        for name in [
            "norm",
            "fisher",
            "last_layer_kl",
            "kl_of_one",
            "kl_of_quarter",
            "kl",
        ] {
            assert_near(number(&parts, name), number(&whole, name), 1e-3);
        }
    }
}

#[test]
fn threads_change_no_bit() {
    let governed = format!(
        "--plugin libgovernor.so --set step_control.0.every=2 {FOUR_STEPS} --set train.measure_step=1"
    );
    let one = Folder::new()
        .env("RAYON_NUM_THREADS", "1")
        .env("CANDLE_NUM_THREADS", "1");
    let many = Folder::new()
        .env("RAYON_NUM_THREADS", "3")
        .env("CANDLE_NUM_THREADS", "3");
    one.train("run", &governed)
        .assert_same_files(&many.train("run", &governed));
}

#[test]
fn a_resumed_run_goes_on_with_the_same_bits() {
    let governor = "--plugin libgovernor.so --set step_control.0.target=3e-5 --set step_control.0.every=3 --step-control governor.last-layer";
    let stateful = told(&["sin=\"stateful\""], "");
    for (args, steps) in [
        (
            format!("{governor} {FOUR_STEPS} --set train.max_steps=7 --set train.measure_step=2"),
            7,
        ),
        // The share of the steps moves from the seventh one on.
        (
            format!("--plugin libgovernor.so {FOUR_STEPS} --set train.max_steps=8"),
            8,
        ),
        // Masks see the learning rate times the share that controls applied last time.
        (
            format!(
                "--plugin libcapo.so --plugin libgovernor.so --set recipe=capo --step-control governor.kl {FOUR_STEPS}"
            ),
            4,
        ),
        (stateful, 4),
    ] {
        Folder::new().assert_resumes(&args, 1..steps);
    }
}

/// For masks, half of a step is a step at half the rate, from the second step on.
#[test]
fn masks_see_the_rate_that_controls_leave() {
    let folder = Folder::new();
    let mask = "--plugin libcapo.so --set mask=[{use=\"capo.curvature\",fisher_threshold=false,hessian_threshold=false}]";
    let halved = folder.train("halved", &told(&["sin=\"none\",scale=0.5"], mask));
    let slow = folder.train(
        "slow",
        &told(&[], &format!("{mask} --set train.learning_rate=5e-4")),
    );
    let ratios = halved
        .metric("capo.curvature/m_f_batch")
        .into_iter()
        .zip(slow.metric("capo.curvature/m_f_batch"));
    for ((ratio, expected), step) in ratios
        .map(|(halved, slow)| halved / slow)
        .zip([4.0, 1.0, 1.0, 1.0])
        .zip(1..)
    {
        assert!(
            (ratio / expected - 1.0).abs() < 0.05,
            "step {step}: {ratio}"
        );
    }
}

#[test]
fn reports_controls_that_break_a_rule() {
    let sins = "panic panic_in_save error longer negative nan reserved_name asks_too_much";
    assert_snapshot!(all_committed(Point::Control, sins));
    // Measuring computes the last layer's data; a control that did not ask does not see it.
    let _ = Folder::new().train(
        "peek",
        &told(&["sin=\"peek\""], "--set train.measure_step=1"),
    );
}

/// Six steps tell `governor.kl` a rate, which then follows the run.
#[test]
fn shows_a_found_rate_everywhere() {
    let folder = Folder::new();
    let args = "--plugin libgovernor.so --set train.max_steps=7 --set train.learning_rate=1e-3 --set eval.num_prompts=0 \
        --set train.lr_scheduler_type=constant --set train.warmup_ratio=0 --set train.per_device_train_batch_size=12 --set rollout.num_generations=4";
    let said = folder.attempt("run", args).succeeded().stdout;
    let told: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("learning rate found: "))
        .collect();
    let run = folder.run_dir("run");
    let rates = run.metric("governor.kl/found_rate");
    let scales = run.metric("governor.kl/scale");
    assert_eq!((rates.len(), scales.len()), (2, 7));
    assert_ne!(rates[0], rates[1]);
    assert_eq!(rates[1], 1e-3 * scales[6]);
    let line = |rate: f64| {
        format!(
            "learning rate found: {rate:.1e} (share {:.2} of 1.0e-3)",
            1e3 * rate
        )
    };
    assert_eq!(told, [line(rates[0]).as_str()]);
    let [low, high] = [rates[0].min(rates[1]), rates[0].max(rates[1])];
    // The median of two is the higher one.
    let followed =
        format!("learning rate      {high:.1e} in the median step, {low:.1e} to {high:.1e}");
    assert!(said.lines().any(|line| line == followed), "{said}");
    assert!(folder.said("diagnose run").contains(&line(high)));
    assert!(
        folder
            .said("runs run")
            .contains(&format!("1e-3 -> {high:.1e}"))
    );
    folder.said("report run --out report.html");
    let found = format!("<dd>{high:.1e} found <small>of 1e-3 set</small></dd>").replace(".0e", "e");
    assert!(folder.text("report.html").contains(&found), "no {found}");
}

/// `host find-rate` trains as `host train` does with the governor, until its rate has followed the
/// run for a while.
#[test]
fn find_rate_runs_only_the_search() {
    let batch = "--set train.per_device_train_batch_size=12 --set rollout.num_generations=4";
    let rate = "--set train.learning_rate=1e-3";
    let folder = Folder::new();
    let training = format!(
        "--plugin libgovernor.so {batch} {rate} --set train.max_steps=25 \
         --set eval.num_prompts=0 --set train.lr_scheduler_type=constant \
         --set train.warmup_ratio=0"
    );
    let trained = folder.train("run", &training);
    let ends = "--set train.max_completions=24 --set train.max_time=1e-9 --set train.metric_for_best_model=eval_reward \
        --set eval.eval_steps=2 --set train.greater_is_better=true --set train.early_stopping_threshold=0.1";
    let said = folder.said(&format!(
        "find-rate {batch} {rate} {ends} --set train.output_dir=run"
    ));
    let rates = trained.metric("governor.kl/found_rate");
    let mut last = rates[10..].to_vec();
    last.sort_by(f64::total_cmp);
    let found = format!("{:.1e}", last[5]);
    assert!(
        said.contains(&format!("learning rate found: {:.1e} (share ", rates[0])),
        "{said}"
    );
    assert!(
        said.ends_with(&format!("\nlearning_rate = {found}    # under [train]\n")),
        "{said}"
    );
    let searched = folder.run_dir("runs/find-rate-seed42");
    assert_eq!(searched.metric("reward"), trained.metric("reward"));
    assert!(!searched.path().join("checkpoints").exists());
    folder
        .said("train --config runs/find-rate-seed42/config.toml --dry-run --plugin libgovernor.so");
    assert_snapshot!(folder.refused("train --resume runs/find-rate-seed42"), @"`runs/find-rate-seed42` is a search of `host find-rate`, which kept no model to go on with (train with the rate that it found)");
    folder.said(&format!(
        "train --output-dir plain --set train.max_steps=1 --set train.learning_rate={found}"
    ));

    let low = folder.said(&format!(
        "find-rate {batch} --set train.learning_rate=1e-6 --plugin libcapo.so"
    ));
    assert!(
        low.contains("learning_rate = 1.0e-6")
            && low.contains("try `--set train.learning_rate=1.0e-5`"),
        "{low}"
    );
    let still = folder
        .host(&format!(
            "find-rate {batch} --set train.learning_rate=0 --set train.max_steps=1"
        ))
        .failed();
    assert!(
        still.starts_with("no learning rate was found in 25 steps: the search needs 6 that move"),
        "{still}"
    );
    let fixed =
        folder.refused("find-rate --plugin libgovernor.so --set step_control.0.target=1e-4");
    assert_snapshot!(fixed, @"`target` of `governor.kl` is 0.0001, and a fixed target finds no learning rate (leave it out, or set it to \"auto\")");
    let alone = Folder::new();
    std::fs::copy(artifacts::file("host"), alone.path().join("host")).unwrap();
    let alone = alone.program("./host".into());
    assert_snapshot!(alone.refused("find-rate"), @"the search is done by `governor.kl`, whose plugin is not beside `host` (give `--plugin libgovernor.so`)");
}

#[test]
fn governed_steps_keep_to_their_target() {
    let folder = Folder::new();
    let governor = "--plugin libgovernor.so --set step_control.0.target=3e-5";
    let run = folder.train(
        "run",
        &format!("{governor} {FOUR_STEPS} --set train.measure_step=1"),
    );
    let config = run.text("config.toml");
    assert!(
        config.contains("recipe = \"governed-grpo\"") && config.contains("use = \"governor.kl\""),
        "{config}"
    );
    assert!(
        run.metric("governor.kl/kl").iter().all(|&kl| kl > 1e-4),
        "ungoverned steps are too long"
    );
    for kl in run.metric("step/kl") {
        assert!(
            3e-6 < kl && kl < 3e-4,
            "{kl}: measured on other completions, it is near 3e-5"
        );
    }
    let forward_free = "--set step_control.0.every=10 --set step_control.0.target=1e-4";
    let run = folder.train(
        "free",
        &format!("--plugin libgovernor.so {FOUR_STEPS} {forward_free}"),
    );
    assert_eq!(run.metric("governor.kl/kl").len(), 1, "measured once");
    assert_eq!(run.metric("governor.kl/predicted_kl").len(), 3);
}

#[test]
fn a_step_can_be_measured_without_changing_it() {
    let folder = Folder::new();
    let plain = folder.train("plain", &told(&[], ""));
    let measured = folder.train("measured", &told(&[], "--set train.measure_step=2"));
    assert_eq!(plain.weights(), measured.weights());
    let names = [
        "kl",
        "last_layer_kl",
        "update_norm",
        "unused_head_update",
        "tail_mass",
        "kept_advantage",
    ];
    let lines = measured.metrics();
    for name in names.map(|name| format!("step/{name}")) {
        let there: Vec<bool> = lines.iter().map(|line| line.contains_key(&name)).collect();
        assert_eq!(there, [false, true, false, true], "{name}");
        assert!(
            measured.metric(&name).iter().all(|value| value.is_finite()),
            "{name}"
        );
    }
    let number = |name: &str| measured.metric(&format!("step/{name}"))[0];
    assert!(number("last_layer_kl") < number("kl"));
    assert!(
        number("unused_head_update") > 0.0 && number("unused_head_update") < number("update_norm")
    );
    // The top tokens are the whole vocabulary.
    assert!(number("tail_mass") < 1e-5);
    let narrow = folder.train(
        "narrow",
        &told(
            &[],
            "--set train.measure_step=2 --set train.last_layer_top_k=1",
        ),
    );
    let tail = narrow.metric("step/tail_mass")[0];
    assert!(0.001 < tail && tail < 0.5, "{tail}");
}
