//! SHA-256 over several parts.

use sha2::{Digest, Sha256};

/// Returns the digest of these parts. Parts that are divided otherwise have another digest, because
/// each one is preceded by its length.
pub(super) fn digest_of(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_division_counts() {
        let digests = [&[&b"ab"[..], b"c"][..], &[b"a", b"bc"], &[b"abc"], &[b"ab", b"c", b""], &[]];
        for (index, digest) in digests.iter().enumerate() {
            for (other, second) in digests.iter().enumerate() {
                assert_eq!(digest_of(digest) == digest_of(second), index == other, "{index} {other}");
            }
        }
    }
}
