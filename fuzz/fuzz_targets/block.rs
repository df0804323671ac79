#![no_main]

#[path = "../block.rs"]
mod block;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| block::block(bytes));
