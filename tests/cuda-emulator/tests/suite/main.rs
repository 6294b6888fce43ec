//! The emulator through `cudarc`, as real code uses a driver.

mod child;
mod device;
mod finds;
mod late;
mod loads;
mod refuses;
mod settings;
mod sins;
