/// A mask that does not come back before somebody else has made the file `go` in its folder.
#[component(Mask, id = "third.waits")]
struct Waits {
    /// The folder in which `started` is made and `go` is waited for.
    #[key]
    folder: String,
}

impl Mask for Waits {
    fn mask(&mut self, _: &mut Ctx, _: &Batch, _: &mut [u8]) -> Result<(), PluginError> {
        let file = |name: &str| std::path::Path::new(&self.folder).join(name);
        std::fs::write(file("started"), "").map_err(|error| PluginError::failed(error.to_string()))?;
        while !file("go").exists() {
            std::thread::yield_now();
        }
        Ok(())
    }
}
