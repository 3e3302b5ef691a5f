//! Administration of a backend that implements only the required methods.

use std::sync::Mutex;
use std::time::Duration;

use distlock_api::{
    AcquisitionId, ErrorKind, FencingToken, ListOptions, LockAdmin, LockFilter, LockInfo, LockKey, Result, async_trait,
};
use futures_util::{StreamExt, TryStreamExt};

struct RequiredOnly;

#[async_trait]
impl LockAdmin for RequiredOnly {
    async fn inspect(&self, _: &LockKey) -> Result<Option<LockInfo>> {
        Ok(None)
    }

    async fn force_release(&self, _: &LockKey, _: &str) -> Result<Option<LockInfo>> {
        Ok(None)
    }
}

#[tokio::test]
async fn the_other_methods_are_refused_as_unsupported() {
    let admin: Box<dyn LockAdmin> = Box::new(RequiredOnly);
    let errors = [
        admin.list(ListOptions::new()).try_next().await.unwrap_err(),
        admin.watch().await.err().unwrap(),
        admin.force_release_holder(&LockKey::new("k").unwrap(), &AcquisitionId::new("a"), "test").await.unwrap_err(),
        admin.release_owner("me", "test").await.unwrap_err(),
        admin.release_matching(&LockFilter::new().owner("me"), "test").await.unwrap_err(),
        admin.history(&LockKey::new("k").unwrap()).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(!error.is_retryable());
    }
}

/// Answers with `keys` locks, and records the requests.
struct Pages {
    keys: usize,
    requests: Mutex<Vec<Option<String>>>,
}

#[async_trait]
impl LockAdmin for Pages {
    async fn inspect(&self, _: &LockKey) -> Result<Option<LockInfo>> {
        Ok(None)
    }

    async fn force_release(&self, _: &LockKey, _: &str) -> Result<Option<LockInfo>> {
        Ok(None)
    }

    async fn page(
        &self,
        _: &LockFilter,
        after: Option<&LockKey>,
        limit: std::num::NonZeroUsize,
    ) -> Result<Vec<LockInfo>> {
        self.requests.lock().unwrap().push(after.map(ToString::to_string));
        let keys = (0..self.keys).map(|n| LockKey::new(format!("{n:03}")).unwrap());
        let beyond = keys.filter(|key| after.is_none_or(|after| key > after)).take(limit.get());
        Ok(beyond.map(|key| LockInfo::new(key, None, FencingToken::new(1), Duration::ZERO)).collect())
    }
}

#[tokio::test]
async fn a_list_reads_no_page_ahead() {
    let pages_read = |keys, page_size, taken| async move {
        let admin = Pages { keys, requests: Mutex::default() };
        let list = admin.list(ListOptions::new().page_size(page_size)).take(taken);
        let list: Vec<_> = list.map(|info| info.unwrap().key.to_string()).collect().await;
        assert_eq!(list.len(), keys.min(taken));
        assert!(list.is_sorted());
        admin.requests.into_inner().unwrap().len()
    };
    assert_eq!(pages_read(0, 3, 100).await, 1);
    assert_eq!(pages_read(2, 3, 100).await, 1);
    // A full page may be the last: only the next one shows.
    assert_eq!(pages_read(3, 3, 100).await, 2);
    assert_eq!(pages_read(7, 3, 100).await, 3);
    assert_eq!(pages_read(7, 3, 3).await, 1, "nothing is read ahead");
    assert_eq!(pages_read(7, 1000, 100).await, 1);
}
