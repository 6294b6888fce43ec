//! Makes a stand-in for CUDA's toolchain and libraries:
//! `cargo run -p cuda-emulator -- FOLDER [KERNELS]...`, where each of the folders KERNELS has one
//! `.cu` file. Prints what to export for a build of `host --features cuda` that runs on the
//! emulator.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut folders = std::env::args_os().skip(1).map(PathBuf::from);
    let Some(home) = folders.next() else {
        eprintln!("cuda-emulator: expected a folder, and folders with kernels");
        return ExitCode::from(2);
    };
    match cuda_emulator::toolkit(&home, &folders.collect::<Vec<_>>()) {
        Ok(home) => {
            let home = home.display();
            println!(
                "export CUDA_HOME={home} NVCC={home}/bin/nvcc CUDA_COMPUTE_CAP=90 PATH={home}/bin:$PATH"
            );
            println!("export LIBRARY_PATH={home}/lib LD_LIBRARY_PATH={home}/lib");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cuda-emulator: {error}");
            ExitCode::FAILURE
        }
    }
}
