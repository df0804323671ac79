#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| treadle_sight::fuzzing::history(bytes));
