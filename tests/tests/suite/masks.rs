//! Compares the recipes of libmasks, run through the trainer's stages, with the losses of the
//! implementations that they name. `plugins/masks/golden/make.py` has differentiated those losses
//! on the same batches.

use capo_loader::registry::Registry;
use capo_loader::watchdog::Watchdog;
use capo_plugin::testing::{Fixture, Records};
use capo_plugin::{AgedContext, CompletionContext, ContextData, PromptContext};
use host::config::{self, Draft};
use host::stages::backward::Reduced;
use host::stages::batch::{BatchWithLogps, SampledBatch, step_info};
use host::stages::{backward, objective};
use host_model::{Sequences, TokenOutputs};
use serde::Deserialize;
use tests::{Folder, artifacts};

#[derive(Deserialize)]
struct Golden {
    tokens: usize,
    group_size: usize,
    batches: Vec<Arrays>,
    recipes: Vec<Recipe>,
    settings: Vec<Settings>,
}

#[derive(Deserialize)]
struct Arrays {
    /// One value for each completion.
    #[serde(default)]
    lengths: Vec<usize>,
    logps: Vec<f32>,
    old_logps: Vec<f32>,
    sampler_logps: Vec<f32>,
    advantages: Vec<f32>,
    entropy: Vec<f32>,
    /// The tokens that count, if these are not all tokens of the completions.
    mask: Option<Vec<u8>>,
    ref_logps: Option<Vec<f32>>,
}

/// One list of derivatives per batch.
#[derive(Deserialize)]
struct Recipe {
    recipe: String,
    source: String,
    slopes: Vec<Vec<f32>>,
}

/// Keys of `[train]`, and one list of derivatives per batch.
#[derive(Deserialize)]
struct Settings {
    train: toml::Table,
    slopes: Vec<Vec<f32>>,
}

impl Arrays {
    /// The batch as the stages before the objective leave it.
    fn batch(&self, [group_size, tokens]: [usize; 2]) -> BatchWithLogps {
        let rows = self.lengths.len();
        let ids: Vec<Vec<u32>> = self.lengths.iter().map(|&length| vec![5; length]).collect();
        let ids: Vec<&[u32]> = ids.iter().map(Vec::as_slice).collect();
        let sequences = Sequences {
            ids: vec![5; rows * (tokens + 1)],
            starts: vec![0; rows],
            prompt_len: 1,
            completion_len: tokens,
            lengths: self.lengths.clone(),
            numbers: Sequences::numbered(rows),
        };
        // A completion of the batch's full length was cut off.
        let truncated = self
            .lengths
            .iter()
            .map(|&length| u8::from(length == tokens))
            .collect();
        let mut batch =
            SampledBatch::new(sequences, &ids, truncated, vec![0.0; rows], group_size, 0);
        batch.arrays.old_logps = Some(self.old_logps.clone().into());
        batch.arrays.context = Some(AgedContext {
            data: self.context([group_size, tokens]),
            age: 0,
        });
        if let Some(mask) = &self.mask {
            batch.arrays.completion_mask = mask.clone().into();
        }
        let (logps, entropy) = (self.logps.clone(), Some(self.entropy.clone()));
        let outputs = TokenOutputs {
            logps,
            entropy,
            hidden: None,
            last_layer: None,
        };
        let mut batch = BatchWithLogps::new(batch, outputs).unwrap();
        batch.sampled.arrays.ref_logps = self.ref_logps.clone().map(Into::into);
        batch
    }

    fn context(&self, [group_size, tokens]: [usize; 2]) -> ContextData {
        let prompts = (0..self.lengths.len() / group_size).map(|_| PromptContext {
            ids: &[1],
            number: 0,
            line: None,
        });
        let completions = self.lengths.iter().enumerate().map(|(b, &length)| {
            let sampler_logps = &self.sampler_logps[b * tokens..][..length];
            CompletionContext {
                text: "",
                spans: &[],
                sampler_logps,
            }
        });
        ContextData::new(tokens, prompts, completions)
    }
}

/// The reduced loss, with its derivative by each token's log-probability. `shape` is that of a
/// group.
fn reduced(registry: &Registry, sets: &[String], shape: [usize; 2], arrays: &Arrays) -> Reduced {
    let draft = Draft::read(None, config::DEFAULT, sets).unwrap();
    let config = config::resolve(registry, draft).unwrap().config;
    let watchdog = Watchdog::start(0, config.component_ids());
    let mut components = registry.build(config.choice(), &watchdog).unwrap();
    let optimizer = Fixture::new(1, 1).batch().optimizer;
    let info = step_info(&config, 0, 0, components.objective.reduction(), optimizer);
    let mut sink = Records::default();
    let (batch, advantages) = (arrays.batch(shape), arrays.advantages.clone());
    let batch = objective::evaluate(
        &mut components.objective,
        &mut sink,
        batch,
        advantages,
        &info,
    )
    .unwrap();
    let view = batch.view(&info);
    let decision = components.deciders.decide(&mut sink, &view).unwrap();
    let factors = &config.train.loss_factors;
    let factored = objective::factor(
        &mut components.objective,
        &mut sink,
        &batch,
        &info,
        factors,
        &decision,
    )
    .unwrap();
    backward::reduce(&batch, &info, &decision, factored.as_ref()).unwrap()
}

/// `host/trainer/tests/data/objectives-golden/corrections.json`.
#[derive(Deserialize)]
struct Corrections {
    limit: usize,
    batches: Vec<Holed>,
    cases: Vec<Corrected>,
}

/// A batch of the shape `[B, T]` whose completions have holes; advantages are `[B]`.
#[derive(Deserialize)]
struct Holed {
    name: String,
    shape: [usize; 2],
    #[serde(flatten)]
    arrays: Arrays,
}

/// TRL's settings, and for each batch the loss and its gradient by the log-probabilities.
#[derive(Deserialize)]
struct Corrected {
    loss_type: String,
    importance_sampling_level: String,
    losses: Vec<f64>,
    gradients: Vec<Vec<f64>>,
    #[serde(flatten)]
    more: toml::Table,
}

impl Corrected {
    /// The settings here.
    fn sets(&self, limit: usize) -> Vec<String> {
        let mut sets = vec![
            format!("recipe={}", self.loss_type),
            "train.mask_denominator=original".into(),
            format!("rollout.max_completion_length={limit}"),
        ];
        if self.loss_type == "luspo" {
            sets.extend(["epsilon", "epsilon_high"].map(|key| format!("objective.{key}=0.2")));
        }
        // VESPO has no level.
        if self.loss_type != "vespo" {
            sets.push(format!(
                "objective.importance_sampling_level={}",
                self.importance_sampling_level
            ));
        }
        let section = |key: &str| {
            if ["beta", "use_bias_correction_kl"].contains(&key) {
                "objective"
            } else {
                "train"
            }
        };
        sets.extend(
            self.more
                .iter()
                .map(|(key, value)| format!("{}.{key}={value}", section(key))),
        );
        sets
    }
}

#[test]
fn every_loss_with_every_correction_agrees_with_trl() {
    let file =
        artifacts::workspace().join("host/trainer/tests/data/objectives-golden/corrections.json");
    let mut golden: Corrections = serde_json::from_value(tests::json(&file)).unwrap();
    for Holed {
        shape: [rows, tokens],
        arrays,
        ..
    } in &mut golden.batches
    {
        arrays.lengths = vec![*tokens; *rows];
        arrays.advantages = arrays
            .advantages
            .iter()
            .flat_map(|&advantage| vec![advantage; *tokens])
            .collect();
    }
    let registry = Registry::open(&[artifacts::file("libmasks.so")]).unwrap();
    // Differences below 1e-8, such as TRL's values of e^-40, do not count.
    let agree = |own: f64, theirs: f64| (own - theirs).abs() <= 2e-5 * theirs.abs() + 1e-8;
    let mut wrong = Vec::new();
    for case in &golden.cases {
        for (batch, (loss, gradient)) in golden
            .batches
            .iter()
            .zip(case.losses.iter().zip(&case.gradients))
        {
            let sets = case.sets(golden.limit);
            let reduced = reduced(&registry, &sets, batch.shape, &batch.arrays);
            let at = format!("{} of {sets:?}", batch.name);
            if !agree(reduced.loss, *loss) {
                wrong.push(format!("{at}: loss {}, expected {loss}", reduced.loss));
            }
            for (i, (own, slope)) in reduced.d_logps.iter().zip(gradient).enumerate() {
                if !agree(f64::from(*own), *slope) {
                    wrong.push(format!("{at}: token {i}: {own}, expected {slope}"));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} numbers are others:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Each batch's derivatives under the settings `sets` are `slopes`.
fn assert_slopes(registry: &Registry, golden: &Golden, sets: &[String], slopes: &[Vec<f32>]) {
    for (number, (arrays, slopes)) in golden.batches.iter().zip(slopes).enumerate() {
        let largest = slopes
            .iter()
            .fold(0.0_f32, |largest, slope| largest.max(slope.abs()));
        for (i, (own, slope)) in reduced(registry, sets, [golden.group_size, golden.tokens], arrays)
            .d_logps
            .iter()
            .zip(slopes)
            .enumerate()
        {
            let name = format!("{sets:?}, batch {number}, token {i}");
            assert!(
                (own - slope).abs() <= 1e-6 * largest,
                "{name}: {own}, expected {slope}"
            );
        }
    }
}

fn golden() -> Golden {
    let file = artifacts::workspace().join("plugins/masks/golden/golden.json");
    serde_json::from_value(tests::json(&file)).unwrap()
}

#[test]
fn gradients_of_recipes_agree_with_their_sources() {
    let (registry, golden) = (
        Registry::open(&[artifacts::file("libmasks.so")]).unwrap(),
        golden(),
    );
    for case in &golden.recipes {
        println!("{} against {}", case.recipe, case.source);
        assert_slopes(
            &registry,
            &golden,
            &[format!("recipe={}", case.recipe)],
            &case.slopes,
        );
    }
}

#[test]
fn gradients_of_trls_settings_agree_with_trl() {
    let (registry, golden) = (
        Registry::open(&[artifacts::file("libmasks.so")]).unwrap(),
        golden(),
    );
    assert_eq!(golden.settings.len(), 9);
    for case in &golden.settings {
        let train = case
            .train
            .iter()
            .map(|(key, value)| format!("train.{key}={value}"));
        let sets: Vec<String> = ["recipe=grpo".to_owned()]
            .into_iter()
            .chain(train)
            .collect();
        assert_slopes(&registry, &golden, &sets, &case.slopes);
    }
}

#[test]
fn every_recipe_trains_and_resumes_to_the_same_bits() {
    let masked = "--set train.top_entropy_quantile=0.5 --set train.vllm_importance_sampling_mode=token_truncate";
    let recipes = ["dppo", "dppo-kl", "ipo", "icepop", "deepseek-v3.2"].map(|recipe| (recipe, ""));
    for (recipe, more) in recipes
        .into_iter()
        .chain([("gspo", masked), ("vespo", masked)])
    {
        let off_policy = "--set train.steps_per_generation=2 --set rollout.top_p=0.9 --set train.per_device_train_batch_size=8";
        let args = format!(
            "--plugin libmasks.so --set recipe={recipe} {more} {off_policy} --set train.save_steps=2 {}",
            crate::FOUR_STEPS
        );
        Folder::new().assert_resumes(&args, [2]);
    }
}

#[test]
fn adaptive_thresholds_continue_after_a_resume() {
    let folder = Folder::new();
    let rates = "--set mask.capo.curvature.target_rejection_rate=0.2 --set mask.masks.probability-floor.target_rejection_rate=0.1";
    let args = format!(
        "--plugin libcapo.so --plugin libmasks.so --set recipe=capo --mask masks.probability-floor --weight capo.curvature-weight {rates} \
         --set weight.0.fisher_threshold=auto --set train.lr_scheduler_type=constant --set train.warmup_ratio=0 --set train.save_steps=1 {}",
        crate::FOUR_STEPS
    );
    let whole = folder.assert_resumes(&args, [2]);
    for (name, steps) in [
        ("capo.curvature", 3),
        ("masks.probability-floor", 3),
        ("capo.curvature-weight", 4),
    ] {
        let found = whole.metric(&format!("{name}/threshold"));
        assert!(
            found.len() == steps && found.iter().all(|found| *found > 0.0),
            "{name}: {found:?}"
        );
    }
    let rates = whole.metric("capo.curvature/rejection_rate");
    assert!(
        rates[0] == 0.0 && rates[1..].iter().all(|rate| (0.02..0.6).contains(rate)),
        "{rates:?}"
    );
}
