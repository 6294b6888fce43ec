//! Who gets the emulator, and who is refused.

use std::path::{Path, PathBuf};

use cudarc::driver::result;
use cudarc::nvrtc;

use crate::child;
use crate::device::{Buffer, Device, emulator};

/// A folder with other kernels: one, of that name.
fn other_kernels(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("kernels")
        .join(name);
    let source = format!(
        "extern \"C\" __global__ void {name}() {{}}\n#define FOR_EACH_KERNEL(X) X({name})\n"
    );
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    std::fs::write(folder.join("curvature.cu"), source).expect("the folder can be written");
    folder
}

#[test]
fn a_process_has_one_driver() {
    let Some(_) = emulator() else { return };
    let error = cuda_emulator::load(&other_kernels("other"))
        .expect_err("the kernels are others")
        .to_string();
    let expected =
        "this process has already loaded another `libcuda.so` (load the emulator first, and once)";
    assert_eq!(error, expected);
}

#[test]
fn the_emulator_wins_where_another_driver_is_installed() {
    let Some(_) = emulator() else { return };
    let installed = cuda_emulator::build(&other_kernels("other")).expect("the kernel compiles");
    let path = installed.to_str().expect("the path is text");
    // The child would not find its kernel in the other driver.
    insta::assert_snapshot!(child::run("fresh", &[("LD_LIBRARY_PATH", path)]), @r"
    [ffffffff, ffffffff]
    Ok(())
    ");
}

#[test]
fn a_child_process_finds_the_driver_in_the_library_path() {
    let Some(emulator) = emulator() else { return };
    let path = emulator.folder().to_str().expect("the path is text");
    insta::assert_snapshot!(child::run("without loading", &[("LD_LIBRARY_PATH", path)]), @"CUDA on the CPU");
}

#[test]
fn kernels_that_do_not_compile_fail_the_test() {
    let Some(_) = emulator() else { return };
    let failure = cuda_emulator::build(&other_kernels("1")).expect_err("1 is no name");
    assert!(
        matches!(&failure, cuda_emulator::Failure::Broken(error) if error.contains("curvature.cu:1:")),
        "{failure}"
    );
    let failure =
        cuda_emulator::build(Path::new("no/such/folder")).expect_err("there are no kernels");
    assert_eq!(
        failure.to_string(),
        "`no/such/folder`: No such file or directory (os error 2)"
    );
}

#[test]
fn a_test_without_a_compiler_is_skipped_unless_it_is_required() {
    let Some(_) = emulator() else { return };
    let none = ("CXX", "no-such-compiler");
    insta::assert_snapshot!(child::run("for_tests", &[none]), @r"
    SKIPPED: the C++ compiler `no-such-compiler` does not run (it is `$CXX`)
    none
    ");
    let said = child::run("for_tests", &[none, ("CAPO_REQUIRE_EMULATOR", "1")]);
    assert!(
        said.contains("panicked") && said.contains("`no-such-compiler` does not run"),
        "{said}"
    );
}

#[test]
fn kernels_have_no_word_that_nvrtc_lacks() {
    let Some(_) = emulator() else { return };
    let folder = other_kernels("strict");
    for word in ["uint32_t x = 1", "float x = INFINITY", "float x = NAN"] {
        let source = format!(
            "extern \"C\" __global__ void f() {{ {word}; }}\n#define FOR_EACH_KERNEL(X) X(f)\n"
        );
        std::fs::write(folder.join("curvature.cu"), source).expect("the folder can be written");
        let failure = cuda_emulator::build(&folder)
            .expect_err("the word is unknown")
            .to_string();
        assert!(failure.contains("curvature.cu:1:"), "{word}: {failure}");
    }
}

#[test]
fn the_run_time_compiler_takes_sources_that_need_no_file() {
    let Some(device) = Device::open() else { return };
    let image =
        nvrtc::compile_ptx("extern \"C\" __global__ void add() {}\n").expect("it takes any source");
    let source = std::ffi::CString::new(image.to_src()).expect("an image has no zero");
    // SAFETY: The image is a text that ends with a zero.
    let module = unsafe { result::module::load_data(source.as_ptr().cast()) }
        .expect("the driver takes its image");
    // SAFETY: The module is loaded.
    unsafe { result::module::unload(module) }.expect("the module is there");
    device
        .function("add")
        .expect("another module has its functions still");

    let error = nvrtc::compile_ptx("\n  #include \"x.cuh\"\n").expect_err("there is no such file");
    let nvrtc::CompileError::CompileError { log, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(
        log.to_str(),
        Ok("error: could not open source file:   #include \"x.cuh\"\n")
    );
}

#[test]
fn seed_and_fill_change_within_a_process() {
    let Some(device) = Device::open() else { return };
    let (emulator, n) = (emulator().expect("it is there"), 128_u32);
    let result = |seed, fill| {
        emulator.set_seed(seed);
        emulator.set_fill(fill);
        let buffer = Buffer::of(&[1_f32; 128]);
        device.run("reverse_without_barrier", 1, n, &mut [buffer.argument()]);
        let fresh = Buffer::<u32>::fresh(1).values()[0];
        (
            buffer
                .values()
                .iter()
                .map(|value| value.to_bits())
                .collect::<Vec<_>>(),
            fresh,
        )
    };
    // Other tests have no result that depends on either.
    let (first, fresh) = result(1, 0);
    assert_eq!(fresh, 0);
    assert_eq!(result(1, 0).0, first);
    assert_ne!(result(2, 0).0, first);
    assert_ne!(result(1, 1).0, first);
    assert_eq!(result(1, 1).1, 0x0101_0101);
    result(42, 0xff);
}
