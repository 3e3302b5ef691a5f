//! What is built on exclusive locks refuses every other mode.

use std::future::pending;

use distlock_api::{AcquireOptions, ErrorKind, LockKey, LockProvider, Mode};
use distlock_memory::{MemoryOnce, MemoryProvider};
use distlock_recipes::lead::LeadExt;
use distlock_recipes::once::{OnceOptions, OnceProvider, OnceProviderExt};

const MODES: [Mode; 2] = [Mode::Shared, Mode::Permits { take: 1, of: 2 }];

#[tokio::test]
async fn work_that_is_done_once_needs_an_exclusive_lock() {
    let once = MemoryOnce::new();
    let key = LockKey::new("k").unwrap();
    for mode in MODES {
        let options = AcquireOptions::new().with_mode(mode);
        let fluent = once.once("k").options(options.clone()).await.map(drop).unwrap_err();
        let plain = once.once_with(key.clone(), OnceOptions::new().with_acquire(options)).await.map(drop).unwrap_err();
        for error in [fluent, plain] {
            assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
        }
    }
    assert_eq!(once.locks().accounting().acquired, 0);
}

#[tokio::test]
async fn leadership_needs_an_exclusive_lock() {
    let locks = MemoryProvider::new();
    for mode in MODES {
        let lead = locks.lead("k").options(AcquireOptions::new().with_mode(mode));
        let error = lead.run(|_| pending::<Result<(), &str>>()).await.map(drop).unwrap_err();
        assert_eq!((error.kind(), error.key().is_some()), (ErrorKind::InvalidOptions, true));
    }
    assert_eq!(locks.accounting().acquired, 0);
}
