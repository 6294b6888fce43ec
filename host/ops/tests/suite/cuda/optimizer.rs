//! Steps of AdamW in several weights at once, and the norms of their gradients, against those of
//! the CPU.

use cudarc::driver::{CudaSlice, DevicePtr};
use host_ops::optimizer::{Mean, MeanSquare, Update};
use host_ops::sum_squares;

use super::gpu::{Bf16, Dtype, F32, Gpu, check, floats, wave};

/// Numbers of a block, as in `optimizer.cuh`.
const CHUNK: usize = 16_384;

#[test]
fn all_weights_in_one_launch() {
    let Some(gpu) = Gpu::open() else { return };
    // Numbers of each weight, dtypes of its gradient and of that of rejected tokens, decay.
    let weights: [(usize, Dtype, Option<Dtype>, f32); 4] = [
        (5, F32, None, 1.0),
        (2 * CHUNK + 77, Bf16, Some(F32), 0.99),
        (CHUNK, F32, Some(Bf16), 0.5),
        (1, Bf16, None, 1.0),
    ];
    let (scale, beta1, beta2, rate, root, eps) = (0.7, 0.9, 0.99, 0.02, 0.3, 1e-8);
    let of = |count, phase| F32.tensor(&wave(count, phase), &[count]);
    let grad = |count, dtype: Dtype, phase| dtype.tensor(&wave(count, phase), &[count]);
    let address = |memory: &CudaSlice<u8>| memory.device_ptr(&gpu.stream).0;
    let (mut expected, mut squares) = (Vec::new(), [0.0; 3]);
    for (count, of_grad, of_rejected, decay) in weights {
        let (w, m, v) = (
            of(count, 0.1),
            of(count, 0.5),
            of(count, 0.9).abs().unwrap(),
        );
        let g = grad(count, of_grad, 1.3);
        let r = of_rejected.map(|dtype| grad(count, dtype, 1.7));
        let (mean, square) = (
            Mean { beta: beta1, scale },
            MeanSquare { beta: beta2, scale },
        );
        mean.update(&m, &g).unwrap();
        square.update(&v, &g, r.as_ref()).unwrap();
        Update {
            decay_factor: decay.into(),
            rate,
            root,
            eps,
        }
        .update(&w, &m, &v)
        .unwrap();
        expected.extend([w, m, v]);
        squares[0] += sum_squares(&floats(&g));
        if let Some(r) = r {
            squares[1] += sum_squares(&floats(&r));
            squares[2] += sum_squares(&floats(&(g + r).unwrap()));
        }
    }
    let run = || {
        let (mut table, mut memory, mut blocks) = (Vec::<u64>::new(), Vec::new(), 0u64);
        for (count, of_grad, of_rejected, decay) in weights {
            let trained = [
                of(count, 0.1),
                of(count, 0.5),
                of(count, 0.9).abs().unwrap(),
            ];
            let trained = trained.map(|tensor| gpu.store(F32, &tensor));
            let g = gpu.store(of_grad, &grad(count, of_grad, 1.3));
            let r = of_rejected.map(|dtype| gpu.store(dtype, &grad(count, dtype, 1.7)));
            table.extend(trained.iter().map(address));
            table.extend([address(&g), r.as_ref().map_or(0, address), count as u64]);
            let flags = [Some(of_grad), of_rejected].map(|dtype| u64::from(dtype == Some(Bf16)));
            table.extend([
                blocks | u64::from(decay.to_bits()) << 32,
                flags[0] | flags[1] << 32,
            ]);
            blocks += count.div_ceil(CHUNK) as u64;
            memory.push((trained, g, r));
        }
        let (table, count) = (gpu.put(&table), weights.len() as u32);
        let (mut parts, mut sums) = (gpu.fresh::<f64>(3 * blocks as usize), gpu.fresh::<f64>(3));
        launch!(gpu, "gradient_squares", blocks, &table, &mut parts, &count);
        launch!(
            gpu,
            "sum_of_squares",
            1,
            &parts,
            &mut sums,
            &(blocks as u32)
        );
        for (found, expected) in gpu.get(&sums).iter().zip(squares) {
            assert!(
                (found / expected - 1.0).abs() < 1e-6,
                "{found}, expected {expected}"
            );
        }
        let [rest1, b2, rest2] = [1.0 - beta1, beta2, 1.0 - beta2].map(|value| value as f32);
        let [s, rate, root, eps] = [scale, rate, root, eps].map(|value| value as f32);
        launch!(
            gpu, "adamw", blocks, &table, &count, &rest1, &b2, &rest2, &s, &rate, &root, &eps
        );
        memory
            .iter()
            .flat_map(|(trained, ..)| trained.iter().map(|memory| gpu.load(F32, memory)))
            .collect::<Vec<_>>()
    };
    check("adamw", F32, run, &expected.iter().collect::<Vec<_>>());
    for (found, expected) in run().iter().zip(&expected) {
        assert!(
            *found == floats(expected),
            "bit for bit: the emulator fuses no multiplication with an addition"
        );
    }
}
