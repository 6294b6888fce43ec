//! Kernels give what they give on a GPU.

use crate::device::{Buffer, Device, argument};

#[test]
fn threads_of_many_blocks() {
    let Some(device) = Device::open() else { return };
    let n = 100_000_u32;
    let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let (a, b, sum) = (Buffer::of(&a), Buffer::of(&vec![0.5_f32; n as usize]), Buffer::<f32>::fresh(n as usize));
    device.run("add", n.div_ceil(256), 256, &mut [a.argument(), b.argument(), sum.argument(), argument(&n)]);
    assert!(sum.values().iter().enumerate().all(|(i, &sum)| sum == i as f32 + 0.5));
}

#[test]
fn blocks_share_memory_and_meet_at_barriers() {
    let Some(device) = Device::open() else { return };
    let values: Vec<f32> = (0..1000).map(|i| (i % 7) as f32).collect();
    let (values_on_device, sums) = (Buffer::of(&values), Buffer::<f32>::fresh(4));
    device.run("sum_blocks", 4, 256, &mut [values_on_device.argument(), sums.argument(), argument(&1000_u32)]);
    let expected: Vec<f32> = values.chunks(256).map(|chunk| chunk.iter().sum()).collect();
    assert_eq!(sums.values(), expected);
}

#[test]
fn a_block_of_two_dimensions_moves_vectors() {
    let Some(device) = Device::open() else { return };
    let values: Vec<f32> = (0..512).map(|i| i as f32).collect();
    let buffer = Buffer::of(&values);
    device.launch("reverse", [1, 1, 1], [32, 4, 1], &mut [buffer.argument()]).expect("the kernel runs");
    let reversed: Vec<f32> = values.chunks(4).rev().flatten().copied().collect();
    assert_eq!(buffer.values(), reversed);
}

#[test]
fn lanes_shuffle_doubles_and_integers() {
    let Some(device) = Device::open() else { return };
    let values: Vec<f64> = (0..64).map(|i| 1.0 + f64::from(i) * 1e-12).collect();
    let (values_on_device, sums, lanes) = (Buffer::of(&values), Buffer::<f64>::fresh(64), Buffer::<i32>::fresh(256));
    device.run("warp_sums", 1, 64, &mut [values_on_device.argument(), sums.argument(), lanes.argument()]);
    for (i, sum) in sums.values().into_iter().enumerate() {
        let warp = &values[i / 32 * 32..][..32];
        assert!((sum - warp.iter().sum::<f64>()).abs() < 1e-13, "lane {i}: {sum}");
    }
    for (i, moved) in lanes.values().chunks(4).enumerate() {
        let lane = i32::try_from(i % 32).expect("a lane is small");
        let up = if lane >= 3 { lane - 3 } else { lane };
        let down = if lane % 8 + 3 < 8 { lane + 3 } else { lane };
        assert_eq!(moved, [7, up, down, lane ^ 5], "lane {i}");
    }
}

#[test]
fn half_warps_vote_by_themselves() {
    let Some(device) = Device::open() else { return };
    // The first half has some above 10, the second all, the third none, the fourth one.
    let values: Vec<u32> =
        (0..64).map(|i| [u32::from(i % 2 == 0) * 11, 11, 0, u32::from(i == 63) * 11][i / 16]).collect();
    let (values, ballots) = (Buffer::of(&values), Buffer::<u32>::fresh(64));
    device.run("votes", 1, 64, &mut [values.argument(), ballots.argument()]);
    let ballots = ballots.values();
    assert_eq!([ballots[0], ballots[16], ballots[32], ballots[48]], [0x5555, 100, 0, 0x8000_0000]);
    assert!(ballots.chunks(16).all(|half| half.iter().all(|ballot| *ballot == half[0])));
}

#[test]
fn lanes_that_returned_block_nobody() {
    let Some(device) = Device::open() else { return };
    let counts = Buffer::of(&[u32::MAX; 48]);
    device.run("partial_warp", 1, 48, &mut [counts.argument()]);
    let expected: Vec<u32> = (0..48).map(|i| [if i < 32 { 16 } else { 8 }, u32::MAX][i % 2]).collect();
    assert_eq!(counts.values(), expected);
}

#[test]
fn atomics_of_many_blocks() {
    let Some(device) = Device::open() else { return };
    let values: Vec<u32> = (5..10_005).collect();
    let (values, total, least) = (Buffer::of(&values), Buffer::of(&[0_u32]), Buffer::of(&[u32::MAX]));
    let (most, bits) = (Buffer::of(&[0_u32]), Buffer::of(&[0_u32]));
    let n = 10_000_u32;
    let arguments =
        &mut [values.argument(), argument(&n), total.argument(), least.argument(), most.argument(), bits.argument()];
    device.run("count", 16, 64, arguments);
    let results = [&total, &least, &most, &bits].map(|result| result.values()[0]);
    assert_eq!(results, [50_045_000, 5, 10_004, 0x3fff]);
}

#[test]
fn threads_of_the_host_launch_side_by_side() {
    let Some(_) = Device::open() else { return };
    std::thread::scope(|scope| {
        for i in 0..4_u32 {
            scope.spawn(move || {
                let device = Device::open().expect("the emulator is there");
                let (value, n) = (Buffer::of(&vec![i as f32; 3000]), 3000_u32);
                for _ in 0..20 {
                    let sum = Buffer::<f32>::fresh(3000);
                    let arguments = &mut [value.argument(), value.argument(), sum.argument(), argument(&n)];
                    device.run("add", 12, 256, arguments);
                    assert_eq!(sum.values(), vec![2.0 * i as f32; 3000]);
                }
            });
        }
    });
}

#[test]
fn the_words_of_cuda() {
    let Some(device) = Device::open() else { return };
    let (numbers, words) = (Buffer::of(&[7.5_f32; 20]), Buffer::of(&[0_u32; 12]));
    let arguments = &mut [numbers.argument(), words.argument(), argument(&2_f32), argument(&0xf0_u32)];
    device.run("vocabulary", 1, 1, arguments);
    let root = 2_f32.sqrt();
    let [e, e1, ln, ln1] = [2_f64.exp(), 2_f64.exp_m1(), 2_f64.ln(), 2_f64.ln_1p()].map(|value| value as f32);
    let expected =
        [1.0 / root, 5.0, root, 2.0, 1.0, 2.0, 5.0, e, e1, ln, ln1, 8.0, root, 2.0, e, ln, 5.0, 4.0, 7.5, 0.0];
    for (i, (value, expected)) in numbers.values().into_iter().zip(expected).enumerate() {
        assert!((value - expected).abs() <= expected * f32::EPSILON, "{i}: {value} for {expected}");
    }
    assert_eq!(words.values(), [2_f32.to_bits(), 4, 5, 24, 0x4000_0000, 7, 3, 3, 0, 0xf0, 32, 1]);
}
