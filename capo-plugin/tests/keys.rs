//! Descriptions of keys that `register!` gives, as a host hears them.

use capo_plugin::abi_keys::KeyInfo;
use capo_plugin::abi_sweep::SweepRange;
use capo_plugin::prelude::*;
use capo_plugin::{Image, KeyDocs, Point, keys, testing};

macro_rules! mask {
    ($name:ident { $($field:tt)* }) => {
        #[derive(Deserialize)]
        #[allow(dead_code)]
        struct $name { $($field)* }

        impl PreBackwardMask for $name {
            fn mask(&mut self, _: &mut Ctx<'_>, _: &Batch<'_>, _: &mut [u8]) -> Result<(), PluginError> {
                Ok(())
            }
        }
    };
}

mask!(Described { max_nats: f32, #[serde(default = "warm_up")] warm_up: u64, share: Option<f32> });
mask!(Plain { max_nats: f32 });
mask!(Inner { max_nats: f32 });
// A type that does not say which keys it reads.
mask!(Flat {
    #[serde(flatten)]
    inner: Inner
});

fn warm_up() -> u64 {
    10
}

fn broken() -> u64 {
    panic!("a default that panics")
}

const SHARED: KeyDocs = keys! { max_nats => "largest surprise kept, nats" };

register!(PreBackwardMask, Described, "test.described", "has descriptions", {
    max_nats => "largest surprise kept, nats"; 1e-3..50.0,
    warm_up = warm_up() => "steps that keep all",
    share = None::<f32> => "largest share of tokens dropped; no limit when absent",
});
register!(PreBackwardMask, Plain, "test.plain", "has no descriptions");
register!(PreBackwardMask, Plain, "test.comma", "has no descriptions, and a comma",);
register!(PreBackwardMask, Plain, "test.shared", "has those of a constant", SHARED);
register!(PreBackwardMask, Flat, "test.flat", "has descriptions only", SHARED,);
register!(PreBackwardMask, Plain, "test.broken", "has a default that panics", { max_nats = broken() => "never heard" });

#[test]
fn keys_are_described_in_the_order_of_their_author() {
    let docs = |point, id| Image::own().key_docs(point, id).unwrap();
    let max_nats = KeyInfo::required("max_nats", "largest surprise kept, nats");
    let warm_up = KeyInfo::optional("warm_up", "steps that keep all", &10);
    let share = KeyInfo::optional("share", "largest share of tokens dropped; no limit when absent", &None::<f32>);
    assert_eq!(docs(Point::Mask, "test.described"), [max_nats.clone(), warm_up, share]);
    assert_eq!(docs(Point::Mask, "test.shared"), [max_nats]);
    let silent = [(Point::Mask, "test.plain"), (Point::Mask, "test.comma"), (Point::Mask, "test.broken")];
    for (point, id) in silent.into_iter().chain([(Point::Reward, "test.described"), (Point::Mask, "test.none")]) {
        assert_eq!(docs(point, id), [], "{id}");
    }
}

#[test]
fn ranges_are_told_apart_from_descriptions() {
    let ranges = |id: &str| Image::own().sweeps(Point::Mask, id).unwrap();
    let expected = SweepRange { key: "max_nats".into(), low: 1e-3, high: 50.0, whole: false };
    assert_eq!(ranges("test.described"), [expected]);
    for id in ["test.plain", "test.shared", "test.broken", "test.none"] {
        assert_eq!(ranges(id), [], "{id}");
    }
    assert_eq!(Image::own().sweeps(Point::Reward, "test.described"), Ok(Vec::new()));
}

#[test]
fn keys_that_a_type_hides_are_those_that_are_described() {
    let components = Image::own().components(Point::Mask).unwrap();
    let flat = components.iter().find(|component| component.id == "test.flat").unwrap();
    assert_eq!(flat.keys.iter().map(ToString::to_string).collect::<Vec<_>>(), ["max_nats"]);
}

#[test]
fn they_are_of_the_keys_that_there_are() {
    assert_eq!(testing::check_key_docs(), Ok(()));
}
