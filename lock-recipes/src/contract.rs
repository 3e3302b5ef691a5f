#![doc = include_str!("../CONTRACT.md")]
