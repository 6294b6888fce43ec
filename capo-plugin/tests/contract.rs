//! Treatment by the guard and the handles of components that break the rules, through the real
//! wire.

use capo_plugin::prelude::*;
use capo_plugin::testing::{self, Fixture, Measured, RolloutFixture};
use capo_plugin::wire::RecipeList;
use capo_plugin::{ErrorKind, Point};

/// A component that does one wrong thing.
#[keys]
struct Sinner {
    /// What it does wrong.
    #[key]
    sin: String,
}

impl Sinner {
    fn panics(&self, place: &str) {
        assert!(self.sin != place, "as told");
    }

    fn check(&self) -> Result<(), PluginError> {
        self.panics("validate");
        if self.sin == "unknown" {
            Err("`sin` is `unknown` (choose a known one)".into())
        } else {
            Ok(())
        }
    }
}

impl Drop for Sinner {
    fn drop(&mut self) {
        self.panics("drop");
    }
}

impl Advantage for Sinner {
    fn estimate(
        &mut self,
        _ctx: &mut Ctx<'_>,
        _batch: &Batch<'_>,
        advantages: &mut [f32],
    ) -> Result<(), PluginError> {
        self.panics("estimate");
        if self.sin == "broken" {
            advantages[1] = f32::NAN;
        }
        Ok(())
    }

    fn validate(&self) -> Result<(), PluginError> {
        self.check()
    }
}

impl Objective for Sinner {
    fn evaluate(
        &mut self,
        _ctx: &mut Ctx<'_>,
        _batch: &Batch<'_>,
        out: TokenLosses<'_>,
    ) -> Result<(), PluginError> {
        self.panics("evaluate");
        if self.sin == "broken" {
            out.losses[0] = f32::INFINITY;
        }
        Ok(())
    }

    fn validate(&self) -> Result<(), PluginError> {
        self.check()
    }
}

impl Reward for Sinner {
    fn score(
        &mut self,
        ctx: &mut Ctx<'_>,
        rollout: &Rollout<'_>,
        rewards: &mut [f32],
    ) -> Result<(), PluginError> {
        self.panics("score");
        match self.sin.as_str() {
            "broken" => ctx.record_tokens("m", &[1.0]),
            "column" => rewards[0] = rollout.completions[0].column("levle")?,
            "type" => rewards[0] = rollout.completions[0].column("level")?,
            "row" => rewards[0] = rollout.completions[1].column("level")?,
            _ => rewards.fill(rollout.completions[0].column::<Vec<f32>>("weights")?[1]),
        }
        Ok(())
    }

    fn save(&self) -> Result<Vec<u8>, PluginError> {
        self.panics("save");
        Ok(Vec::new())
    }

    fn validate(&self) -> Result<(), PluginError> {
        self.check()
    }
}

impl Mask for Sinner {
    fn mask(
        &mut self,
        _ctx: &mut Ctx<'_>,
        _batch: &Batch<'_>,
        token_mask: &mut [u8],
    ) -> Result<(), PluginError> {
        self.panics("mask");
        match self.sin.as_str() {
            "broken" => *token_mask.last_mut().unwrap() = 1,
            "error" => return Err("no such luck".into()),
            _ => {}
        }
        Ok(())
    }

    fn step_end(
        &mut self,
        _: &mut Ctx<'_>,
        _: &Batch<'_>,
        _: &[u8],
        _: bool,
    ) -> Result<(), PluginError> {
        self.panics("step_end");
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        self.panics("inputs");
        Inputs::LAST_LAYER
    }

    fn save(&self) -> Result<Vec<u8>, PluginError> {
        self.panics("save");
        Ok(Vec::new())
    }

    fn validate(&self) -> Result<(), PluginError> {
        self.check()
    }
}

fn fixture() -> Fixture {
    Fixture::new(2, 3).lengths(&[3, 2])
}

fn rollout() -> RolloutFixture {
    RolloutFixture::new(&["4", "5"]).columns(&[r#"{"level": "easy", "weights": [1, 2.5]}"#, "[]"])
}

fn sinner(sin: &str) -> String {
    format!("sin = \"{sin}\"")
}

/// The kind and the message of the error when the component of `point` commits `sin`, without the
/// component's name.
fn said(point: Point, sin: &str) -> (ErrorKind, String) {
    let table = sinner(sin);
    let error = match point {
        Point::Reward => rollout()
            .score(&mut testing::reward::<Sinner>(&table).unwrap())
            .unwrap_err(),
        Point::Advantage => fixture()
            .estimate(&mut testing::advantage::<Sinner>(&table).unwrap())
            .unwrap_err(),
        Point::Objective => fixture()
            .evaluate(&mut testing::objective::<Sinner>(&table).unwrap())
            .unwrap_err(),
        _ => fixture()
            .mask(&mut testing::mask::<Sinner>(&table).unwrap())
            .unwrap_err(),
    };
    let name = format!("component `test.{}`: ", point.name());
    (
        error.kind(),
        error
            .to_string()
            .strip_prefix(&name)
            .expect("the component's name")
            .to_owned(),
    )
}

#[test]
fn a_broken_rule_is_named_with_its_place() {
    let broken = [
        (
            Point::Mask,
            "set `token_mask` to 1 at completion 1, token 2, where it was cleared (a mask may only clear)",
        ),
        (
            Point::Advantage,
            "the advantage is NaN at completion 0, token 1 (it must be finite)",
        ),
        (
            Point::Objective,
            "the loss is inf at completion 0, token 0 (it must be finite)",
        ),
        (
            Point::Reward,
            "`record_tokens(\"m\")` got 1 values for a batch of 2 completions (at this point one per completion)",
        ),
    ];
    for (point, sentence) in broken {
        assert_eq!(
            said(point, "broken"),
            (ErrorKind::CONTRACT, sentence.into())
        );
    }
    assert_eq!(
        said(Point::Mask, "error"),
        (ErrorKind::FAILED, "no such luck".into())
    );
}

#[test]
fn a_panic_becomes_an_error_and_retires_the_instance() {
    let mut mask = testing::mask::<Sinner>(&sinner("mask")).unwrap();
    let error = fixture().mask(&mut mask).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PANIC);
    assert_eq!(
        error.to_string(),
        "component `test.mask`: panicked in `mask`: as told"
    );
    let again = "component `test.mask`: called again after it panicked (the instance is retired; start the run again)";
    assert_eq!(fixture().mask(&mut mask).unwrap_err().to_string(), again);
    assert_eq!(mask.save().unwrap_err().to_string(), again);
}

#[test]
fn panics_elsewhere_do_not_cross_either() {
    let made = |sin: &str| testing::mask::<Sinner>(&sinner(sin));
    assert_eq!(
        made("inputs").err().unwrap().to_string(),
        "panicked while it was created: as told"
    );
    assert!(
        made("save")
            .unwrap()
            .save()
            .unwrap_err()
            .to_string()
            .ends_with("panicked in `save`: as told")
    );
    let end = fixture().step_end(&mut made("step_end").unwrap(), &[1; 6], true);
    assert!(
        end.unwrap_err()
            .to_string()
            .ends_with("panicked in `step_end`: as told")
    );
    drop(made("drop").unwrap());
}

#[test]
fn keys_that_do_not_validate_are_refused_at_every_point() {
    let errors = |sin: &str| {
        let table = sinner(sin);
        [
            testing::reward::<Sinner>(&table).err(),
            testing::advantage::<Sinner>(&table).err(),
            testing::objective::<Sinner>(&table).err(),
            testing::mask::<Sinner>(&table).err(),
        ]
    };
    for error in errors("unknown") {
        let error = error.expect("it does not validate");
        // The author's kind was another; what is wrong is the table.
        assert_eq!(
            (error.kind(), error.message()),
            (ErrorKind::CONFIG, "`sin` is `unknown` (choose a known one)")
        );
    }
    for error in errors("validate") {
        let error = error.expect("it panics");
        assert_eq!(
            (error.kind(), error.message()),
            (ErrorKind::PANIC, "panicked while it was created: as told")
        );
    }
    assert_eq!(errors("none").map(|error| error.is_none()), [true; 4]);
}

#[test]
fn a_stateless_component_refuses_foreign_state() {
    let mut mask = testing::mask::<Sinner>(&sinner("none")).unwrap();
    mask.load(&[]).unwrap();
    let error = mask.load(&[1, 2, 3]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::STATE);
    assert_eq!(
        error.to_string(),
        "component `test.mask`: 3 bytes of saved state, but this component keeps none (it was saved by another one)"
    );
}

#[test]
fn a_reward_hears_what_is_wrong_with_a_row() {
    let failed = |sentence: &str| (ErrorKind::FAILED, sentence.to_owned());
    let say = |sin: &str| said(Point::Reward, sin);
    assert_eq!(
        say("score"),
        (ErrorKind::PANIC, "panicked in `score`: as told".into())
    );
    assert_eq!(
        say("column"),
        failed("a prompt's row has no column `levle` (did you mean `level`?)")
    );
    assert_eq!(
        say("type"),
        failed("column `level` of a prompt's row: expected a number, found \"easy\"")
    );
    assert!(
        say("row")
            .1
            .starts_with("the prompt's row is not a JSON object: expected an object, found a list")
    );
    let mut reward = testing::reward::<Sinner>(&sinner("none")).unwrap();
    assert_eq!(rollout().score(&mut reward).unwrap().rewards, [2.5, 2.5]);
    assert!(
        reward
            .load(&[1])
            .unwrap_err()
            .to_string()
            .ends_with("(it was saved by another one)")
    );
    let reward = testing::reward::<Sinner>(&sinner("save")).unwrap();
    assert!(
        reward
            .save()
            .unwrap_err()
            .to_string()
            .ends_with("panicked in `save`: as told")
    );
}

/// Reads the step's alignment, asked for or not.
#[keys]
struct Aligned {
    /// Ask for the alignment.
    #[key]
    asks: bool,
}

impl StepControl for Aligned {
    fn control(
        &mut self,
        ctx: &mut Ctx<'_>,
        _: &Batch<'_>,
        update: &mut Update<'_>,
    ) -> Result<(), PluginError> {
        ctx.record("alignment", update.alignment()?.unwrap());
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        if self.asks {
            Inputs::ALIGNMENT
        } else {
            Inputs::NONE
        }
    }
}

#[test]
fn an_alignment_is_measured_for_those_that_ask() {
    let control = |asks: bool| {
        let mut control = testing::step_control::<Aligned>(&format!("asks = {asks}")).unwrap();
        fixture().control(&mut control, Measured::default())
    };
    assert_eq!(
        control(true).unwrap().records.number("alignment"),
        Some(0.1)
    );
    let error = control(false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MISSING_INPUT);
    assert!(
        error.to_string().contains("return `Inputs::ALIGNMENT`"),
        "{error}"
    );
}

#[test]
fn a_component_knows_no_extension_yet() {
    let mut mask = testing::mask::<Sinner>("sin = \"none\"").unwrap();
    assert!(
        mask.extension::<RecipeList>("capo.mask-later/1")
            .unwrap()
            .is_none()
    );
}
