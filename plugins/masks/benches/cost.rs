//! Prints what each mask and weight costs, in µs per 1,000 tokens on one thread:
//! `cargo bench -p masks`.

use std::time::Instant;

use capo_plugin::testing::{Fixture, Records};
use capo_plugin::{Image, Point};
// Linked in, so that its components register themselves here.
use masks as _;

const CALLS: usize = 15;
const COMPLETIONS: usize = 64;
const TOKENS: usize = 1024;

fn main() {
    let fixture = Fixture::new(COMPLETIONS, TOKENS).groups_of(8);
    let (context, image, mut sink) = (fixture.context(), Image::own(), Records::default());
    let batch = fixture.batch_with(&context);
    println!(
        "{COMPLETIONS} completions of {TOKENS} tokens, median of {CALLS} calls, µs per 1,000 tokens"
    );
    for point in [Point::Mask, Point::Weight] {
        for component in image.components(point).expect("a list of components") {
            let id = component.id.as_str();
            let mut call: Box<dyn FnMut(&mut Records)> = match point {
                Point::Mask => {
                    let (mut mask, mut token_mask) = (
                        image.mask(id, "{}").expect("a mask"),
                        vec![1; batch.dims.len()],
                    );
                    Box::new(move |sink| {
                        token_mask.fill(1);
                        mask.mask(sink, &batch, &mut token_mask).expect("decisions");
                    })
                }
                _ => {
                    let (mut weight, token_mask) = (
                        image.weight(id, "{}").expect("a weight"),
                        vec![1; batch.dims.len()],
                    );
                    let mut weights = vec![1.0; batch.dims.len()];
                    Box::new(move |sink| {
                        weight
                            .weigh(sink, &batch, &token_mask, &mut weights)
                            .expect("weights")
                    })
                }
            };
            let mut times: Vec<f64> = (0..CALLS)
                .map(|_| {
                    let start = Instant::now();
                    call(&mut sink);
                    start.elapsed().as_secs_f64()
                })
                .collect();
            times.sort_by(f64::total_cmp);
            println!(
                "{id:28} {:8.1}",
                times[CALLS / 2] * 1e6 / (batch.dims.len() as f64 / 1e3)
            );
        }
    }
}
