#![no_main]

#[path = "../spilled.rs"]
mod spilled;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| spilled::spilled(bytes));
