//! The GPU kernels' machine code on disk.

use host_ops::kernels::{keep, kept};

#[test]
fn machine_code_is_kept_and_nothing_else_is() {
    let folder = std::env::temp_dir().join(format!("capo-kept-code-{}", std::process::id()));
    let file = folder.join("capo/policy-0.cubin");
    assert_eq!(kept(&file), None);
    keep(&file, b"// of the emulator").unwrap();
    assert!(!file.exists());
    let code = b"\x7fELF and more";
    keep(&file, code).unwrap();
    assert_eq!(kept(&file).as_deref(), Some(&code[..]));
    std::fs::write(&file, "spoilt").unwrap();
    assert_eq!(kept(&file), None);
    std::fs::remove_dir_all(folder).unwrap();
}
