//! The numbers of a run's first steps with the default settings. If they change, training has
//! changed.
//!
//! The numbers may differ in the last of their four digits on a machine whose matrix kernels add in
//! another order.

use std::fmt::Write;

use insta::assert_snapshot;
use tests::{Folder, RunDir};

/// One line per step; a loss that is only rounding is 0.
fn trajectory(run: &RunDir, names: &[&str]) -> String {
    let mut text = String::new();
    for line in run.metrics() {
        write!(text, "{}", line["step"]).unwrap();
        for name in names {
            let value = line[*name].as_f64().unwrap();
            let value = if *name == "loss" && value.abs() < 1e-7 {
                0.0
            } else {
                value
            };
            write!(text, "  {name} {value:.3e}").unwrap();
        }
        text.push('\n');
    }
    text
}

#[test]
fn grpo() {
    let folder = Folder::new();
    let run = folder.train("run", "--set train.max_steps=4");
    assert_snapshot!(trajectory(&run, &["loss", "reward", "grad_norm", "entropy"]), @"
    1  loss 0.000e0  reward 6.042e-1  grad_norm 1.626e0  entropy 7.942e-2
    2  loss 0.000e0  reward 6.042e-1  grad_norm 2.256e0  entropy 9.168e-2
    3  loss 0.000e0  reward 5.625e-1  grad_norm 1.821e0  entropy 9.483e-2
    4  loss 0.000e0  reward 5.000e-1  grad_norm 1.366e0  entropy 1.145e-1
    ");
}

#[test]
fn capo() {
    let folder = Folder::new();
    let run = folder.train("run", "--plugin libcapo.so --set train.max_steps=4");
    let names = [
        "loss",
        "reward",
        "grad_norm",
        "mask/rejection_rate",
        "capo.curvature/m_f_batch",
    ];
    assert_snapshot!(trajectory(&run, &names), @"
    1  loss 0.000e0  reward 6.042e-1  grad_norm 9.137e-1  mask/rejection_rate 1.087e-2  capo.curvature/m_f_batch 4.328e-7
    2  loss 0.000e0  reward 6.042e-1  grad_norm 1.872e0  mask/rejection_rate 4.870e-3  capo.curvature/m_f_batch 7.050e-7
    3  loss 0.000e0  reward 5.833e-1  grad_norm 1.405e0  mask/rejection_rate 1.724e-3  capo.curvature/m_f_batch 2.059e-7
    4  loss 0.000e0  reward 5.000e-1  grad_norm 1.367e0  mask/rejection_rate 0.000e0  capo.curvature/m_f_batch 6.299e-8
    ");
}
