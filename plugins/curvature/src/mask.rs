//! The curvature mask: drops tokens that would move the objective or the policy too far.

use std::marker::PhantomData;

use capo_plugin::prelude::*;
use capo_plugin::wire::KeyDoc;
use capo_plugin::{Keys, Sketch, Table};

use crate::predictor::Predictor;
use crate::table::{MaskKeys, Thresholds};
use crate::target::Target;

/// Drops the subsets of tokens whose predicted step would move the objective or the policy too far
/// (paper, algorithm 1).
pub struct CurvatureMask<T> {
    predictor: Predictor,
    target: Option<Target>,
    thresholds: PhantomData<T>,
}

impl<T: Thresholds> Keys for CurvatureMask<T> {
    const ABOUT: &'static str =
        "Drops tokens whose predicted step moves objective or policy too far.";

    fn keys() -> Vec<KeyDoc> {
        MaskKeys::<T>::keys()
    }

    fn from_table(table: &Table) -> Result<Self, PluginError> {
        let keys = MaskKeys::<T>::from_table(table)?;
        Ok(Self {
            predictor: keys.predictor()?,
            target: keys.target_rejection_rate.map(Target::new),
            thresholds: PhantomData,
        })
    }
}

impl<T: Thresholds> Mask for CurvatureMask<T> {
    fn mask(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        token_mask: &mut [u8],
    ) -> Result<(), PluginError> {
        let thresholds = match &self.target {
            Some(target) => target.thresholds(&self.predictor, batch)?,
            None => self.predictor.model.acceptance(),
        };
        let mut assessment = self.predictor.assess(ctx, batch, token_mask, &thresholds)?;
        self.predictor
            .assign
            .rejections(batch, token_mask, &mut assessment.token_mask);
        token_mask.copy_from_slice(&assessment.token_mask);
        if self.target.is_some() {
            Target::record(ctx, &thresholds);
        }
        Ok(())
    }

    fn step_end(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        token_mask: &[u8],
        taken: bool,
    ) -> Result<(), PluginError> {
        if let Some(target) = &mut self.target {
            target.step_end(ctx, &self.predictor, batch)?;
        }
        let weights: Vec<f32> = token_mask.iter().map(|&keep| f32::from(keep)).collect();
        self.predictor.step_end(ctx, batch, &weights, taken)
    }

    fn inputs(&self) -> Inputs {
        self.predictor.inputs()
    }

    fn traits(&self) -> Traits {
        self.predictor.traits(self.target.is_some())
    }

    fn save(&self) -> Result<Vec<u8>, PluginError> {
        let sketch = self.target.as_ref().map(|target| target.sketch.save());
        Ok([sketch.unwrap_or_default(), self.predictor.save()?].concat())
    }

    fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        let Some(target) = &mut self.target else {
            return self.predictor.load(state);
        };
        let (sketch, rest) = Sketch::load(state)?;
        self.predictor.load(rest)?;
        target.sketch = sketch;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Wide;
    use capo_plugin::testing::{self, Fixture};
    use capo_plugin::{OptimizerInfo, OptimizerKind};

    /// A batch in parts gets the decisions and shifts of the whole batch, in the middle of a run
    /// too.
    #[test]
    fn tokens_are_decided_alone_where_it_is_declared() {
        let fixture = Fixture::new(5, 6).lengths(&[6, 3, 0, 5, 6]);
        for semantics in ["paper", "authors", "exact"] {
            let table = |more: &str| {
                format!("semantics = \"{semantics}\"\nhessian_threshold = false\n{more}")
            };
            let mut open = testing::mask::<CurvatureMask<Wide>>(&table("")).unwrap();
            let m_f = fixture.mask(&mut open).unwrap().records.tokens[0].1[4];
            let table = table(&format!("fisher_threshold = {m_f}"));
            let mut mask = testing::mask::<CurvatureMask<Wide>>(&table).unwrap();
            for step in 0..2 {
                let whole = fixture.mask(&mut mask).unwrap();
                let parts: Vec<_> = [0..1, 1..4, 4..5]
                    .map(|rows| fixture.part(rows).mask(&mut mask).unwrap())
                    .into_iter()
                    .map(|masked| (masked.token_mask, masked.records.tokens[0].1.clone()))
                    .collect();
                let (token_mask, m_f): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
                assert_eq!(
                    (token_mask.concat(), m_f.concat()),
                    (whole.token_mask.clone(), whole.records.tokens[0].1.clone())
                );
                let rejected = 20 - whole.token_mask.iter().filter(|&&keep| keep == 1).count();
                assert_eq!(
                    whole.records.number("rejected_fisher"),
                    Some(rejected as f64 / 20.0),
                    "{table}"
                );
                assert!(
                    step > 0 || (whole.token_mask.contains(&0) && whole.token_mask.contains(&1)),
                    "{table}"
                );
                fixture
                    .step_end(&mut mask, &whole.token_mask, true)
                    .unwrap();
            }
        }
    }

    #[test]
    fn tables_are_checked() {
        let say = |table: &str| {
            testing::mask::<CurvatureMask<Wide>>(table)
                .err()
                .unwrap()
                .to_string()
        };
        assert_eq!(
            say("hessian_range = [0, 1]\nhessian_threshold = 2"),
            "`hessian_threshold` and `hessian_range` are both given (keep one)"
        );
        assert_eq!(
            say("fisher_treshold = 2"),
            "unknown key `fisher_treshold` (did you mean `fisher_threshold`?)"
        );
        assert_eq!(
            say("fisher_threshold = true"),
            "`fisher_threshold` is true (give a number, or false to switch the test off)"
        );
        for (key, value) in [("fisher_threshold", "0"), ("hessian_threshold", "-2")] {
            let sentence = format!("`{key}` is {value} (it must be finite and above 0)");
            assert_eq!(say(&format!("{key} = {value}")), sentence);
        }
        assert_eq!(
            say("hessian_range = [1, 1]"),
            "`hessian_range` is [1, 1] (its low end must be below its high end; `hessian_threshold = false` in its place switches the test off)"
        );
        assert!(
            say("granularity = \"sentence\"")
                .contains("is `sentence` (use `token`, `completion`, `group` or `batch`)")
        );
    }

    #[test]
    fn shifts_of_the_batch_can_be_left_out() {
        let fixture = Fixture::new(4, 6);
        let run = |table: &str| {
            let mut mask = testing::mask::<CurvatureMask<Wide>>(table).unwrap();
            fixture.mask(&mut mask).unwrap()
        };
        let (with, without) = (run(""), run("batch_shifts = false"));
        assert!(
            with.records.number("masked_kl_batch").is_some()
                && without.records.number("m_f_batch").is_none()
        );
        assert_eq!(
            (with.token_mask, with.records.tokens),
            (without.token_mask, without.records.tokens)
        );
    }

    #[test]
    fn presets_differ_and_the_first_is_the_default() {
        let fixture = Fixture::new(4, 6).lengths(&[6, 3, 0, 5]).groups_of(2);
        let run = |table: &str| {
            let table = format!("granularity = \"batch\"\noptimizer = \"adam\"\n{table}");
            let mut mask = testing::mask::<CurvatureMask<Wide>>(&table).unwrap();
            let token_mask = fixture.mask(&mut mask).unwrap().token_mask;
            let none = vec![0; token_mask.len()];
            let mut seen = Vec::new();
            for (token_mask, taken) in [(&none, false), (&token_mask, true), (&none, false)] {
                seen.push(fixture.mask(&mut mask).unwrap().records.tokens);
                fixture.step_end(&mut mask, token_mask, taken).unwrap();
            }
            seen.push(fixture.mask(&mut mask).unwrap().records.tokens);
            seen
        };
        let (paper, authors) = (run(""), run("semantics = \"authors\""));
        assert_eq!(run("semantics = \"paper\""), paper);
        assert_ne!(paper, authors);
        let aligned = run("semantics = \"authors\"\nfeature = \"aligned\"");
        assert!(aligned != authors && aligned != paper);
    }

    #[test]
    fn a_batch_rejected_whole_reaches_the_model_only_where_it_counts() {
        let fixture = Fixture::new(4, 6);
        let (none, all) = (vec![0; 24], vec![1; 24]);
        for (table, counts) in [("", false), ("semantics = \"authors\"", true)] {
            let mut mask =
                testing::mask::<CurvatureMask<Wide>>(&format!("optimizer = \"adam\"\n{table}"))
                    .unwrap();
            let before = mask.save().unwrap();
            fixture.step_end(&mut mask, &all, false).unwrap();
            assert_eq!(
                mask.save().unwrap(),
                before,
                "a gradient that was not finite is no step"
            );
            fixture.step_end(&mut mask, &none, false).unwrap();
            assert_eq!(mask.save().unwrap() != before, counts);
        }
    }

    /// The trainer's second moment includes rejected tokens, and so does the mask's model. With
    /// `optimizer = "adamw"` it does not.
    #[test]
    fn rejected_tokens_enter_the_second_moment_where_they_enter_the_trainers() {
        let token_mask: Vec<u8> = (0..24).map(|at| at % 2).collect();
        let state = |kind: OptimizerKind, table: &str| {
            let optimizer = OptimizerInfo {
                kind,
                ..Fixture::new(4, 6).batch().optimizer
            };
            let fixture = Fixture::new(4, 6).optimizer(optimizer);
            let mut mask = testing::mask::<CurvatureMask<Wide>>(table).unwrap();
            fixture.step_end(&mut mask, &token_mask, true).unwrap();
            mask.save().unwrap()
        };
        let plain = state(OptimizerKind::ADAMW, "");
        assert_ne!(state(OptimizerKind::ADAMW_KEPT_AND_REJECTED, ""), plain);
        assert_eq!(
            state(
                OptimizerKind::ADAMW_KEPT_AND_REJECTED,
                "optimizer = \"adamw\""
            ),
            plain
        );
    }

    #[test]
    fn semantics_that_do_not_fit_are_refused() {
        let say = |table: &str| {
            testing::mask::<CurvatureMask<Wide>>(table)
                .err()
                .unwrap()
                .to_string()
        };
        assert!(say("feature = \"nxt\"").contains("`feature` is `nxt` (use `aligned` or `next`)"));
        let saved = testing::mask::<CurvatureMask<Wide>>("")
            .unwrap()
            .save()
            .unwrap();
        let mut other = testing::mask::<CurvatureMask<Wide>>("semantics = \"authors\"").unwrap();
        assert!(
            other
                .load(&saved)
                .unwrap_err()
                .to_string()
                .contains("made with `feature` = `aligned`")
        );
    }
}
