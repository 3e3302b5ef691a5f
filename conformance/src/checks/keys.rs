//! C20: keys are compared by their bytes, and different keys are different locks.

use distlock_api::LockKey;

use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure};
use crate::leases::{LONG, renewed};

checks! {
    C20 different_keys_are_different_locks Smoke []
        "Keys that differ in one byte can be held at the same time, and each is held exactly by \
         itself. A failure means that the store folds, cuts, trims or interprets keys.";
    C20 owner_and_metadata_round_trip [Admin]
        "Owner and metadata are shown exactly as they were given, whatever characters they \
         contain. A failure means that the store changes or interprets them.";
}

/// Texts that stores and query languages are known to fold, cut, trim, parse or evaluate.
#[rustfmt::skip]
const ODD: &[&str] = &[
    "a", "A", "ä", "Ä", "a\u{308}", "ß", "ss", "SS", "ı", "i", "I", "İ", "ﬁ", "fi", "K", "\u{212a}", "é",
    "e\u{301}", "Å", "\u{212b}", "a\u{200b}", "a\u{feff}", "\u{feff}a", "a\u{ad}", "\0", "a\0", "\0a", "a\0b",
    "a\0c", " ", "  ", "a ", " a", "a\t", "a\n", "a\r\n", "a\r", "a\u{a0}", "\u{3000}", ".", "..", "a.b",
    "a..b", "a.b.c", ".a", "a.", "$", "$$", "$a", "a$", "$$NOW", "$$ROOT", "$expiresAt", "$lockId",
    "$$CLUSTER_TIME", "$set", "$where", "/", "//", "a/b", "a//b", "/a", "a/", "\\", "a\\b", "%", "%00", "a%2fb",
    "%61", "_", "a_b", "*", "?", "a*", "[a]", "'", "\"", "''", "\"\"", "`", "{", "}", "{}", "[]",
    "{\"$gt\":\"\"}", "'; --", "null", "undefined", "true", "0", "00", "0.0", "1", "1.0", "1e0", "-0", "_id",
    "owner", "meta", "__proto__", "ObjectId(\"0123456789abcdef01234567\")", "0123456789abcdef01234567", "🔒",
    "🔓", "👩‍💻", "👩", "🇩🇪", "🇩", "א", "שלום", "\u{202e}abc", "abc", "中", "中文", "\u{10ffff}", "\u{e000}",
];

#[track_caller]
fn odd_keys(limit: usize) -> Result<Vec<LockKey>, Failure> {
    let mut keys = Vec::new();
    for text in ODD {
        keys.push(LockKey::new(*text)?);
    }
    // Long keys that differ only at the very end.
    let stem = "k".repeat(limit - 1);
    for last in ["", "a", "b", "A"] {
        keys.push(LockKey::new(format!("{stem}{last}"))?);
    }
    let words = "é".repeat(limit / 2 - 1);
    for last in ["é", "è", "e"] {
        keys.push(LockKey::new(format!("{words}{last}"))?);
    }
    Ok(keys)
}

async fn different_keys_are_different_locks(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let keys = odd_keys(cx.profile().key_limit())?;
    let mut guards = Vec::new();
    for key in &keys {
        let guard = a.attempt(key, renewed(LONG)).await?;
        let guard = guard.ok_or_else(|| Failure::new(format!("{key:?} is busy, and only other keys are held")))?;
        ensure!(guard.key() == key, "the guard of {key:?} has the key {:?}", guard.key());
        guards.push(guard);
    }
    for key in &keys {
        b.ensure_busy(key, "another client holds it").await?;
    }
    // Releasing every other key must not free the rest.
    let mut kept = Vec::new();
    for (at, guard) in guards.into_iter().enumerate() {
        if at % 2 == 1 {
            kept.push(guard);
            continue;
        }
        let key = guard.key().clone();
        let outcome = guard.release().await?;
        ensure!(outcome.is_released(), "the release of {key:?} returned {outcome:?}");
    }
    for guard in &kept {
        b.ensure_busy(guard.key(), "another client holds it").await?;
        ensure!(!guard.is_lost(), "{:?} was lost when other keys were released: {:?}", guard.key(), guard.loss());
    }
    for key in keys.iter().step_by(2) {
        let free = b.attempt(key, renewed(LONG)).await?;
        ensure!(free.is_some(), "{key:?} is busy after its release");
    }
    Ok(())
}

async fn owner_and_metadata_round_trip(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let admin = cx.admin(&b)?;
    let plain = cx.key();
    let _plain = a.take(&plain, renewed(LONG)).await?;
    // The metadata that the provider adds for every holder.
    let always = admin.inspect(&plain).await?.map(|info| info.metadata).unwrap_or_default();
    for text in ODD {
        let key = cx.key();
        let mut options = renewed(LONG).with_owner(*text);
        // NUL ends a name in some formats, so a store may refuse or escape it; a value is text.
        let name = text.replace('\0', "nul");
        options = options.with_metadata(name.clone(), *text).with_metadata("also", "$$NOW");
        let guard = a.take(&key, options).await?;
        let info = admin.inspect(&key).await?.ok_or_else(|| Failure::new("inspect shows nothing for a held lock"))?;
        ensure!(info.key == key, "inspect of {key:?} returned the lock {:?}", info.key);
        ensure!(info.owner.as_deref() == Some(*text), "the owner {text:?} came back as {:?}", info.owner);
        let value = info.metadata.get(&name).map(String::as_str);
        ensure!(value == Some(*text), "metadata {name:?} = {text:?} came back as {value:?}: {:?}", info.metadata);
        let also = info.metadata.get("also").map(String::as_str);
        ensure!(also == Some("$$NOW"), "metadata \"$$NOW\" came back as {also:?}");
        let mut of_others = info.metadata.iter().filter(|(other, _)| **other != name && *other != "also");
        ensure!(
            of_others.all(|(name, value)| always.get(name) == Some(value)),
            "two entries of metadata came back as {:?}",
            info.metadata
        );
        drop(guard);
    }
    Ok(())
}
