#![no_main]

#[path = "../value.rs"]
mod value;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| value::value(bytes));
