//! The GPU kernels' PTX on disk.

use host_ops::kernels::{keep, kept};

#[test]
fn ptx_is_kept_and_nothing_else_is() {
    let folder = std::env::temp_dir().join(format!("capo-kept-ptx-{}", std::process::id()));
    let file = folder.join("capo/policy-0.ptx");
    assert_eq!(kept(&file), None);
    keep(&file, "// of the emulator").unwrap();
    assert!(!file.exists());
    let ptx = "//\n.version 9.0\n.target sm_80\n";
    keep(&file, ptx).unwrap();
    assert_eq!(kept(&file).as_deref(), Some(ptx));
    std::fs::write(&file, "spoilt").unwrap();
    assert_eq!(kept(&file), None);
    std::fs::remove_dir_all(folder).unwrap();
}
