//! The inputs of `fuzz/corpus`, and random changes of them.
//!
//! `DISTLOCK_FUZZ_CASES` sets the number of cases of each target, and `DISTLOCK_FUZZ_SEED` the
//! seed, which is printed, and otherwise new in each run.

use std::fmt::Write;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use distlock_fuzz_targets::ALL;
use fastrand::Rng;

const CASES: u64 = 2_000;

/// What an edit inserts: numbers at their ends, and characters with a meaning somewhere.
const WORDS: [&[u8]; 18] = [
    &[0],
    &[0xff],
    &[0x7f],
    &[0xff, 0xff, 0xff, 0x7f],
    &[0, 0, 0, 0x80],
    &[0xff; 8],
    &[0, 0, 0, 0, 0, 0, 0, 0x80],
    b"18446744073709551615",
    b"9223372036854775807",
    b"-1",
    b"\"",
    b"\\",
    b"%2F",
    b"@",
    b";",
    b" ",
    b"\x01",
    "\u{202e}".as_bytes(),
];

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder fuzz").to_owned()
}

fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = fuzz().join("corpus").join(name);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    // The same inputs for the same seed.
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(path).expect("readable"))).collect()
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Changes an input in one to eight places.
fn changed(rng: &mut Rng, corpus: &[(PathBuf, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = rng.choice(corpus).expect("inputs").1.clone();
    for _ in 0..rng.usize(1..=8) {
        let at = rng.usize(..=bytes.len());
        let end = rng.usize(at..=bytes.len().min(at + 16));
        match rng.u8(..6) {
            0 => _ = bytes.splice(at..end, []),
            1 => _ = bytes.splice(at..end, std::iter::repeat_with(|| rng.u8(..)).take(end - at).collect::<Vec<_>>()),
            2 => _ = bytes.splice(at..at, rng.choice(WORDS).expect("words").iter().copied()),
            3 => _ = bytes.splice(at..end, rng.choice(WORDS).expect("words").iter().copied()),
            4 => _ = bytes.splice(at..at, bytes[at..end].to_vec()),
            _ => {
                let other = &rng.choice(corpus).expect("inputs").1;
                let from = rng.usize(..=other.len());
                bytes.splice(at.., other[from..].iter().copied());
            }
        }
    }
    bytes
}

fn check(name: &str, target: fn(&[u8])) {
    let corpus = corpus(name);
    for (path, bytes) in &corpus {
        if let Err(panic) = catch_unwind(|| target(bytes)) {
            eprintln!("input: {}", path.display());
            resume_unwind(panic);
        }
    }
    let (seed, cases) = (number("DISTLOCK_FUZZ_SEED", fastrand::u64(..)), number("DISTLOCK_FUZZ_CASES", CASES));
    println!("{name}: {} inputs and {cases} cases, DISTLOCK_FUZZ_SEED={seed}", corpus.len());
    let mut rng = Rng::with_seed(seed);
    for case in 0..cases {
        let bytes = changed(&mut rng, &corpus);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(&bytes))) {
            let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
                let _ = write!(hex, "{byte:02x}");
                hex
            });
            eprintln!("case {case}, to be kept in fuzz/corpus/{name} (`xxd -r -p`): {hex}");
            resume_unwind(panic);
        }
    }
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($name), distlock_fuzz_targets::$name);
            }
        )*

        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

targets! { connection_strings forwarded_headers grants idempotency_header path_keys records replies stored_answers }

/// Each target is a program of cargo-fuzz, too, and is tested above.
#[test]
fn every_target_is_known_everywhere() {
    assert_eq!(ALL.map(|(name, _)| name), TESTED);
    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).expect("the manifest of cargo-fuzz");
    let programs: Vec<&str> = manifest.lines().filter_map(|line| line.strip_prefix("path = \"fuzz_targets/")).collect();
    assert_eq!(programs, ALL.map(|(name, _)| format!("{name}.rs\"")));
    for (name, _) in ALL {
        let program = fs::read_to_string(fuzz().join("fuzz_targets").join(format!("{name}.rs"))).expect("a program");
        assert!(program.contains(&format!("distlock_fuzz_targets::{name}(")), "{program}");
    }
}
