#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| treadle_security::tls::fuzzing::tls_session(bytes));
