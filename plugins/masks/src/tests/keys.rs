//! Tests that keys are refused when out of range.

use capo_plugin::Image;
use insta::assert_snapshot;

/// The lines of `refused.txt`, each a point, an id and keys, with the error message below.
#[test]
fn what_is_out_of_range_is_refused() {
    let refused = |line: &str| {
        let (point, component) = line.split_once(' ').unwrap();
        let (id, keys) = component.split_once(' ').unwrap();
        let error = match point {
            "weight" => Image::own().weight(id, keys).err(),
            _ => Image::own().mask(id, keys).err(),
        };
        format!("{line}\n    {}\n", error.unwrap())
    };
    assert_snapshot!(include_str!("refused.txt").lines().map(refused).collect::<String>());
}
