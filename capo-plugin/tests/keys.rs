//! Keys that `component` and `keys` describe, as a host hears them and as a table gives them.

use capo_plugin::prelude::*;
use capo_plugin::wire::{ComponentInfo, KeyDoc};
use capo_plugin::{Image, Limits, Point, testing};

/// Where a limit applies.
#[derive(Choice, Clone, Copy, PartialEq, Debug)]
enum Side {
    Both,
    OnlyAbove,
    #[choice("below/under")]
    Below,
}

/// Drops tokens that are too surprising.
///
/// This paragraph is not in the description.
#[component(Mask, id = "test.cap")]
struct Cap {
    /// Largest surprise that is kept,
    /// nats.
    ///
    /// This paragraph is not in the description.
    #[key(above = 0, search = 1e-3..=50.0)]
    max_nats: f32,
    /// Steps that keep all tokens.
    #[key(default = 10, at_most = 100, search = 1..=100)]
    warm_up: u64,
    #[key(default = Side::Both)]
    side: Side,
    #[key(flatten)]
    share: Share,
    /// A word.
    #[key(default = "no", name = "type")]
    word: String,
    calls: u64,
}

/// Keys that several components share.
#[keys]
struct Share {
    /// Largest share of tokens that is dropped; no limit when absent.
    #[key(at_least = 0, at_most = 1, not_with = "max_nats")]
    share: Option<f64>,
    /// Weights.
    #[key(default = vec![1.0, 2.0], above = 0)]
    weights: Vec<f32>,
}

impl Mask for Cap {
    fn mask(&mut self, ctx: &mut Ctx<'_>, _: &Batch<'_>, _: &mut [u8]) -> Result<(), PluginError> {
        self.calls += 1;
        ctx.record("calls", self.calls as f64);
        Ok(())
    }

    fn validate(&self) -> Result<(), PluginError> {
        let keys = format!(
            "{} {} {:?} {:?} {:?} {}",
            self.max_nats, self.warm_up, self.side, self.share.share, self.share.weights, self.word
        );
        Err(PluginError::config(keys))
    }
}

/// A mask around another one, with a key of its own.
#[keys]
struct Outer<M> {
    #[key(flatten)]
    inner: M,
    /// A share.
    #[key(above = 0, below = 1)]
    rate: Option<f64>,
}

/// The inner mask.
#[component(Mask, id = "test.inner", within = Outer)]
struct Inner {
    /// A limit, or infinite for none.
    #[key(default = 5.0, infinite, not_with = ["rate", "other"])]
    limit: f32,
}

impl Mask for Outer<Inner> {
    fn mask(&mut self, _: &mut Ctx<'_>, _: &Batch<'_>, _: &mut [u8]) -> Result<(), PluginError> {
        let _ = (self.inner.limit, self.rate);
        Ok(())
    }
}

#[keys]
struct Broken {
    /// A key.
    #[key(default = broken())]
    key: u64,
}

fn broken() -> u64 {
    panic!("a default that panics")
}

impl Mask for Broken {
    fn mask(&mut self, _: &mut Ctx<'_>, _: &Batch<'_>, _: &mut [u8]) -> Result<(), PluginError> {
        let _ = self.key;
        Ok(())
    }
}

register!(Mask, Broken, "test.broken", "Has a default that panics.",);

fn component(id: &str) -> ComponentInfo {
    Image::own().component(Point::Mask, id).unwrap().unwrap()
}

/// A line for each key: name, default, limits, values and description.
fn line(key: &KeyDoc) -> String {
    let range = key.range.into_option();
    let range = range.map(|range| (range.low, range.high, range.whole));
    let limits = Limits::from(key.limits).words(false, None);
    let choices: Vec<&str> = key.choices.iter().map(|name| name.as_str()).collect();
    format!(
        "{} {:?} {limits:?} {range:?} {} {choices:?} {}",
        key.name,
        key.default(),
        key.wanted,
        key.about
    )
}

#[test]
fn a_host_hears_what_stands_at_the_fields() {
    let cap = component("test.cap");
    assert_eq!(cap.about, "Drops tokens that are too surprising.");
    let lines: Vec<String> = cap.keys.iter().map(line).collect();
    assert_eq!(
        lines,
        [
            r#"max_nats None Some("finite and above 0") Some((0.001, 50.0, false)) a number [] Largest surprise that is kept, nats."#,
            r#"warm_up Some("10") Some("at most 100") Some((1.0, 100.0, true)) a whole number from 0 up [] Steps that keep all tokens."#,
            r#"side Some("\"both\"") None None a string ["both", "only_above", "below/under"] Where a limit applies."#,
            r#"share Some("null") Some("between 0 and 1") None a number [] Largest share of tokens that is dropped; no limit when absent."#,
            r#"weights Some("[1.0,2.0]") Some("finite and above 0") None a list of numbers [] Weights."#,
            r#"type Some("\"no\"") None None a string [] A word."#,
        ]
    );
    assert_eq!(component("test.inner").about, "The inner mask.");
    let names: Vec<String> = component("test.inner")
        .keys
        .iter()
        .map(|key| key.name.to_string())
        .collect();
    assert_eq!(names, ["limit", "rate"]);
    assert!(component("test.broken").keys.is_empty());
}

#[test]
fn a_table_is_read_and_refused_in_one_form_of_sentence() {
    let say = |table: &str| testing::mask::<Cap>(table).err().unwrap().to_string();
    let read = [
        ("max_nats = 1", "1 10 Both None [1.0, 2.0] no"),
        (
            "max_nats = 0.5\nwarm_up = 3\nside = \"below/under\"\nweights = [3]\ntype = \"yes\"",
            "0.5 3 Below None [3.0] yes",
        ),
    ];
    for (table, expected) in read {
        assert_eq!(say(table), expected, "{table}");
    }
    let refused = [
        ("", "key `max_nats` is missing"),
        (
            "max_nat = 1",
            "unknown key `max_nat` (did you mean `max_nats`?)",
        ),
        (
            "max_nats = 0",
            "`max_nats` is 0 (it must be finite and above 0)",
        ),
        (
            "max_nats = 1e39",
            "`max_nats` is 1e+39 (it must be finite and above 0)",
        ),
        ("max_nats = \"x\"", "`max_nats` is \"x\" (give a number)"),
        (
            "max_nats = 1\nwarm_up = -1",
            "`warm_up` is -1 (give a whole number from 0 up)",
        ),
        (
            "max_nats = 1\nwarm_up = 0.5",
            "`warm_up` is 0.5 (give a whole number from 0 up)",
        ),
        (
            "max_nats = 1\nwarm_up = 101",
            "`warm_up` is 101 (it must be at most 100)",
        ),
        (
            "max_nats = 1\nside = \"left\"",
            "`side` is `left` (use `both`, `only_above` or `below/under`)",
        ),
        (
            "max_nats = 1\nweights = [1, \"a\"]",
            "`weights` is [1,\"a\"] (give a list of numbers)",
        ),
        (
            "max_nats = 1\nweights = [1, 0]",
            "`weights` is [1,0] (it must be finite and above 0)",
        ),
        (
            "max_nats = 1\nshare = 0.5",
            "`max_nats` and `share` are both given (keep one)",
        ),
    ];
    for (table, expected) in refused {
        assert_eq!(say(table), expected, "{table}");
    }
    let inner = |table: &str| testing::mask::<Outer<Inner>>(table).map(drop);
    assert_eq!(inner("limit = 1e39"), Ok(()));
    assert_eq!(inner("rate = 0.5"), Ok(()));
    let sentence = inner("rate = 0.5\nlimit = 1").unwrap_err().to_string();
    assert_eq!(sentence, "`rate` and `limit` are both given (keep one)");
    let sentence = inner("rate = 1").unwrap_err().to_string();
    assert_eq!(sentence, "`rate` is 1 (it must be above 0 and below 1)");
}
