#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| distlock_fuzz_targets::grants(bytes));
