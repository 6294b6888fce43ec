//! The governor that measures the KL divergence of a step.

use capo_plugin::prelude::*;
use capo_plugin::{KeyValue, Numeric, OptimizerInfo, OptimizerKind, Value, Wanted};

use crate::search::{Part, Search, Step};
use crate::slope::Slope;
use crate::target::scale;

/// Weight of a new measurement in the running calibration.
const NEW: f64 = 0.3;
/// First bytes of a saved state.
const STATE: &str = "governor.kl/1 ";

/// Value of the key `target`.
#[derive(Clone, Copy)]
enum Target {
    /// A fixed KL divergence, nats per completion token.
    Fixed(f64),
    /// A learning rate that the first steps tell, and that follows the run.
    Auto,
}

impl KeyValue for Target {
    fn wanted() -> Wanted {
        Wanted::any(
            "nats per completion token, or \"auto\"",
            "numbers or \"auto\"",
        )
    }

    fn read(value: &Value) -> Result<Self, String> {
        match value.as_f64() {
            Some(nats) => Ok(Self::Fixed(nats)),
            None if value == "auto" => Ok(Self::Auto),
            None => Err(Self::wanted().request()),
        }
    }

    fn json(&self) -> String {
        match self {
            Self::Fixed(nats) => nats.json(),
            Self::Auto => "\"auto\"".to_owned(),
        }
    }

    fn numbers(&self, see: &mut dyn FnMut(f64)) {
        if let Self::Fixed(nats) = self {
            see(*nats);
        }
    }
}

impl Numeric for Target {}

/// Shortens steps to what the policy can take, or to a KL divergence between the policies before
/// and after a step.
#[component(StepControl, id = "governor.kl")]
struct Kl {
    /// With `auto` the learning rate finds itself; a number is the largest KL divergence of a
    /// step, nats per completion token. Usual numbers are 1e-5 to 1e-3.
    #[key(default = Target::Auto, above = 0)]
    target: Target,
    /// Share of the completions on which it is measured.
    #[key(default = 0.125, above = 0, at_most = 1)]
    fraction: f64,
    /// Measure every so many steps; in between the KL is told from Adam's second moment.
    #[key(default = 1, at_least = 1)]
    every: u64,
    /// Running mean of ln(KL / ½ Σ Δ² v̂) over measured steps; `None` before the first.
    rho: Option<f64>,
    search: Search,
}

impl Kl {
    /// KL divergence of `share` of the step in nats, measured or estimated from Adam's second
    /// moment.
    fn kl(
        &mut self,
        ctx: &mut Ctx,
        step: u64,
        share: f64,
        update: &mut Update,
    ) -> Result<f64, PluginError> {
        // What the search finds rests on its first steps, so that each of these is measured, on all
        // completions.
        let begins = matches!(self.target, Target::Auto) && self.search.begins();
        let fraction = if begins { 1.0 } else { self.fraction };
        if self.every == 1 {
            let kl = update.measure_kl_of_part(fraction, share)?;
            ctx.record("kl", kl);
            return Ok(kl);
        }
        let fisher = update.fisher().map_err(|error| {
            error.context("`every` is above 1, which needs Adam's second moment (set `every = 1`)")
        })?;
        let fisher = share.powi(2) * fisher;
        let predicted = self.rho.map(|rho| rho.exp() * fisher);
        if let Some(predicted) = predicted {
            ctx.record("predicted_kl", predicted);
        }
        let kl = match predicted {
            Some(predicted) if !begins && !step.is_multiple_of(self.every) => predicted,
            _ => {
                let kl = update.measure_kl_of_part(fraction, share)?;
                ctx.record("kl", kl);
                self.calibrate(kl / fisher);
                kl
            }
        };
        if let Some(rho) = self.rho {
            ctx.record("rho", rho);
        }
        Ok(kl)
    }

    /// The share of a step that the search leaves.
    fn take(
        &mut self,
        ctx: &mut Ctx,
        batch: &Batch,
        update: &mut Update,
    ) -> Result<f64, PluginError> {
        let earns = batch.advantages.iter().any(|advantage| *advantage != 0.0);
        let reach = if self.search.has_not_begun() {
            reach(&batch.optimizer, earns, update)?
        } else {
            1.0
        };
        let rate = batch.optimizer.learning_rate;
        if let Some(slope) = Slope::of(batch, update)?
            && let Some(errors) = self.search.hear(slope, rate)
        {
            ctx.record("slope", errors);
        }
        // Of the first steps the whole is measured, and then the part that is likely to be taken.
        // Of the others it is known.
        let begins = self.search.begins();
        let share = if begins { 1.0 } else { self.search.left(rate) };
        let kl = self.kl(ctx, batch.step, share, update)?;
        let step = Step {
            kl: kl / share.powi(2),
            entropy: entropy(batch),
            rate,
            length: update.norm()?,
            reach,
            earns,
        };
        let part = if !begins {
            Some(Part { share, kl })
        } else if let Some(share) = self.search.part(step) {
            let kl = update.measure_kl_of_part(1.0, share)?;
            Some(Part { share, kl })
        } else {
            None
        };
        let left = self.search.take(step, part);
        if let Some(rate) = self.search.found() {
            ctx.record("found_rate", rate);
        }
        Ok(left)
    }

    /// Parses a saved state after its first bytes. `None` if it is malformed or belongs to the
    /// other kind of target.
    fn read(&self, text: &str) -> Option<(Option<f64>, Search)> {
        let (rho, search) = text
            .split_once(' ')
            .map_or((text, None), |(rho, search)| (rho, Some(search)));
        let search = match (self.target, search) {
            (Target::Fixed(_), None) => self.search,
            (Target::Auto, Some(search)) => Search::load(search)?,
            _ => return None,
        };
        let rho = match rho {
            "none" => None,
            bits if bits.len() == 16 => Some(
                u64::from_str_radix(bits, 16)
                    .ok()
                    .map(f64::from_bits)
                    .filter(|rho| rho.is_finite())?,
            ),
            _ => return None,
        };
        Some((rho, search))
    }

    /// Adds `ratio`, measured ÷ estimated divergence, to the calibration. A step with a zero or
    /// non-finite divergence changes nothing.
    fn calibrate(&mut self, ratio: f64) {
        let new = ratio.ln();
        if new.is_finite() {
            self.rho = Some(self.rho.map_or(new, |old| old + NEW * (new - old)));
        }
    }
}

/// The policy's entropy in nats per completion token, as the mean of −log p over the sampled
/// tokens; 0 without tokens.
fn entropy(batch: &Batch) -> f64 {
    let tokens = batch
        .completion_mask
        .iter()
        .zip(batch.logps)
        .filter(|(mask, _)| **mask != 0);
    let (sum, count) = tokens.fold((0.0, 0), |(sum, count), (_, logp)| {
        (sum - f64::from(*logp), count + 1)
    });
    sum / f64::from(count.max(1))
}

/// How far the step moves the weights, as a share of the learning rate (root mean square). The
/// length of SGD's steps has nothing to do with the rate alone, so that a usual length of Adam's
/// takes its place, unless weight decay alone may have moved them.
fn reach(optimizer: &OptimizerInfo, earns: bool, update: &mut Update) -> Result<f64, PluginError> {
    if optimizer.kind == OptimizerKind::SGD {
        return Ok(if earns || optimizer.weight_decay == 0.0 {
            0.5
        } else {
            0.0
        });
    }
    let weights: u64 = update.groups().iter().map(|group| group.parameters).sum();
    Ok(update.norm()? / (optimizer.learning_rate * (weights as f64).sqrt()))
}

impl StepControl for Kl {
    fn control(
        &mut self,
        ctx: &mut Ctx,
        batch: &Batch,
        update: &mut Update,
    ) -> Result<(), PluginError> {
        let left = match self.target {
            Target::Fixed(target) => scale(target, self.kl(ctx, batch.step, 1.0, update)?),
            Target::Auto => self.take(ctx, batch, update)?,
        };
        ctx.record("scale", left);
        update.scale(left);
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        match self.target {
            Target::Fixed(_) => Inputs::NONE,
            Target::Auto => Inputs::ALIGNMENT,
        }
    }

    fn save(&self) -> Result<Vec<u8>, PluginError> {
        let rho = self
            .rho
            .map_or("none".to_owned(), |rho| format!("{:016x}", rho.to_bits()));
        let search = match self.target {
            Target::Fixed(_) => String::new(),
            Target::Auto => format!(" {}", self.search.save()),
        };
        Ok(format!("{STATE}{rho}{search}").into_bytes())
    }

    fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        let text = std::str::from_utf8(state)
            .ok()
            .and_then(|text| text.strip_prefix(STATE));
        let (rho, search) = text.and_then(|text| self.read(text)).ok_or_else(|| {
            PluginError::state(format!(
                "{} bytes are no state of `{}` with this `target` (resume with the plugin and \
                 settings that wrote them)",
                state.len(),
                STATE.trim_end()
            ))
        })?;
        self.rho = rho;
        self.search = search;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use capo_plugin::StepControlHandle;
    use capo_plugin::testing::{self, Controlled, Fixture, Measured};
    use insta::assert_snapshot;

    use super::*;
    use crate::search::FIRST;

    fn governor(table: &str) -> StepControlHandle {
        testing::step_control::<Kl>(table).unwrap()
    }

    fn at(step: u64, governor: &mut StepControlHandle, kl: f64, fisher: f64) -> Controlled {
        let update = Measured {
            kl,
            fisher,
            ..Measured::default()
        };
        Fixture::new(2, 3)
            .step(step)
            .control(governor, update)
            .unwrap()
    }

    #[test]
    fn a_step_comes_to_the_target() {
        let mut every = governor("target = 1e-4");
        for (kl, scale) in [(1e300, 1e-152), (4e-4, 0.5), (1e-4, 1.0), (0.0, 1.0)] {
            assert_eq!(at(0, &mut every, kl, 1.0).scales, [scale; 3]);
        }
        for kl in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(at(0, &mut every, kl, 1.0).scales, [0.0; 3]);
        }
    }

    #[test]
    fn between_measurements_the_second_moment_says_it() {
        let mut third = governor("target = 1e-4\nevery = 3");
        let number = |controlled: &Controlled, name: &str| controlled.records.number(name);
        // The first step is measured, whatever its number.
        let first = at(4, &mut third, 4e-4, 2e-4);
        assert_eq!(
            (
                first.scales,
                number(&first, "kl"),
                number(&first, "predicted_kl")
            ),
            ([0.5; 3], Some(4e-4), None)
        );
        assert!((number(&first, "rho").unwrap() - 2.0_f64.ln()).abs() < 1e-12);
        let second = at(5, &mut third, f64::NAN, 8e-4);
        assert_eq!(number(&second, "kl"), None);
        assert!((number(&second, "predicted_kl").unwrap() - 16e-4).abs() < 1e-15);
        assert!((second.scales[0] - 0.25).abs() < 1e-12);
        let third_step = at(6, &mut third, 4e-4, 1e-4);
        let expected = 0.7 * 2.0_f64.ln() + 0.3 * 4.0_f64.ln();
        assert!((number(&third_step, "rho").unwrap() - expected).abs() < 1e-12);
        // A step with a zero or NaN divergence leaves the calibration unchanged.
        for kl in [0.0, f64::NAN] {
            assert_eq!(
                number(&at(9, &mut third, kl, 1e-4), "rho"),
                number(&third_step, "rho")
            );
        }
    }

    #[test]
    fn state_goes_on_where_it_was_saved() {
        let mut first = governor("target = 1e-4\nevery = 2");
        assert_eq!(first.save().unwrap(), b"governor.kl/1 none");
        at(0, &mut first, 4e-4, 1e-4);
        let mut second = governor("target = 1e-4\nevery = 2");
        second.load(&first.save().unwrap()).unwrap();
        assert_eq!(
            at(1, &mut first, 1.0, 3e-3).scales,
            at(1, &mut second, 1.0, 3e-3).scales
        );
        for foreign in [
            &b""[..],
            b"governor.kl/2 none",
            b"governor.kl/1 7ff8000000000000",
            b"\xff",
        ] {
            assert!(
                second
                    .load(foreign)
                    .unwrap_err()
                    .to_string()
                    .contains("no state of `governor.kl/1`")
            );
        }
    }

    #[test]
    fn a_rate_that_was_found_is_kept_in_the_state() {
        let step = |number: u64, governor: &mut StepControlHandle| {
            let update = Measured {
                kl: 0.5 / (number + 1) as f64,
                ..Measured::default()
            };
            let controlled = Fixture::new(2, 3)
                .step(number)
                .control(governor, update)
                .unwrap();
            let [scale, found] =
                ["scale", "found_rate"].map(|name| controlled.records.number(name));
            assert_eq!(controlled.scales, [scale.unwrap(); 3]);
            (scale.unwrap(), found)
        };
        let mut first = governor("");
        let found: Vec<_> = (0..FIRST - 2)
            .map(|number| step(number, &mut first).1)
            .collect();
        assert!(found.iter().all(Option::is_none));
        let mut second = governor("target = \"auto\"");
        second.load(&first.save().unwrap()).unwrap();
        for number in FIRST - 2..FIRST + 2 {
            let (scale, found) = step(number, &mut first);
            assert_eq!(step(number, &mut second), (scale, found));
            assert_eq!(found.is_some(), number + 1 >= FIRST);
        }
        for (mut one, other) in [
            (governor("target = 1e-4"), first),
            (second, governor("target = 1e-4")),
        ] {
            assert!(
                one.load(&other.save().unwrap())
                    .unwrap_err()
                    .to_string()
                    .contains("with this `target`")
            );
        }
    }

    /// A step that is far too long, and a gradient that agrees with the steps so far.
    #[test]
    fn a_rate_follows_the_run_where_the_trainer_knows_the_slope() {
        let found = |alignment: f64, gradient_norm: f64, iteration: u64| {
            let mut governor = governor("");
            let mut rates = Vec::new();
            for number in 0..3 * FIRST {
                let update = Measured {
                    kl: 20.0,
                    alignment,
                    gradient_norm,
                    ..Measured::default()
                };
                let controlled = Fixture::new(2, 3)
                    .step(number)
                    .iteration(iteration)
                    .control(&mut governor, update)
                    .unwrap();
                rates.extend(controlled.records.number("found_rate"));
                let is_known = alignment.is_finite() && gradient_norm.is_finite() && iteration == 0;
                let slope = controlled.records.number("slope");
                assert_eq!(slope.is_some(), is_known && number > 0, "{number}");
            }
            rates
        };
        let told = found(f64::NAN, 1e5, 0);
        assert!(told.iter().all(|rate| *rate == told[0]));
        assert_eq!(found(0.5, f64::NAN, 0), told);
        // Steps agree with completions that they were made for.
        assert_eq!(found(0.5, 1e5, 1), told);
        let end = told.len() - 1;
        let raised = found(0.5, 1e5, 0)[end];
        assert!(raised > 1.5 * told[end], "{raised} {told:?}");
        let lowered = found(-0.5, 1e5, 0)[end];
        assert!(lowered < 0.5 * told[end], "{lowered} {told:?}");
    }

    #[test]
    fn a_search_begins_at_a_share_of_the_entropy_of_the_completions() {
        let first = |fixture: Fixture| {
            let rate = fixture.batch().optimizer.learning_rate;
            let norms = Measured::GROUPS.map(|group| 0.5 * rate * (group.parameters as f64).sqrt());
            // A long step, of which less is taken than the square law says.
            let update = Measured {
                kl: 1.0,
                norms,
                ..Measured::default()
            };
            fixture.control(&mut governor(""), update).unwrap().scales[0].powi(2)
                * 2.0_f64.powf(1.5)
        };
        // Padding has no part in it: the mean of three tokens is half a nat. Weights move by half
        // of the rate.
        let sampled = Fixture::new(2, 2)
            .lengths(&[2, 1])
            .logps(&[-0.25, -0.5, -0.75, -50.0]);
        assert!((first(sampled) / (0.008 * 0.5 / 4.0) - 1.0).abs() < 1e-12);
        assert!(
            (first(Fixture::new(1, 2).lengths(&[0])) / (0.008 * 0.05 / 4.0) - 1.0).abs() < 1e-12
        );
    }

    #[test]
    fn values_out_of_bounds_are_refused() {
        let say = |table: &str| {
            testing::step_control::<Kl>(table)
                .err()
                .unwrap()
                .to_string()
        };
        assert_snapshot!(say("target = 0"), @"`target` is 0 (it must be finite and above 0)");
        assert_snapshot!(say("target = \"atuo\""), @r#"`target` is "atuo" (give nats per completion token, or "auto")"#);
        assert_snapshot!(say("target = true"), @r#"`target` is true (give nats per completion token, or "auto")"#);
        assert_snapshot!(say("fraction = 0"), @"`fraction` is 0 (it must be above 0 and at most 1)");
        assert_snapshot!(say("fraction = 1.5"), @"`fraction` is 1.5 (it must be above 0 and at most 1)");
        assert_snapshot!(say("every = 0"), @"`every` is 0 (it must be at least 1)");
        assert_snapshot!(say("evry = 1"), @"unknown key `evry` (did you mean `every`?)");
    }
}
