//! A full disk.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock_conformance::{Fault, FixtureError, process};
use mongodb::bson::{Binary, doc, spec::BinarySubtype};
use tokio::time::{Instant, timeout};

use super::super::member::Member;
use super::super::set::Cluster;

pub(in super::super) const FULL: &str = "disk-full";

/// The member whose disk is small.
const MEMBER: usize = 0;
const LIMIT: Duration = Duration::from_secs(40);
/// The data that is written repeatedly until the server of the full disk gives up. It cannot be
/// compressed.
const WRITE: usize = 1 << 20;

pub(super) fn full(cluster: &Arc<Cluster>) -> Arc<dyn Fault> {
    Arc::new(DiskFull(Arc::clone(cluster)))
}

/// Fills the disk of one member, which is made the primary if possible. A `mongod` whose disk is
/// full aborts. With free space it starts and recovers.
struct DiskFull(Arc<Cluster>);

impl DiskFull {
    fn member(&self) -> &Member {
        &self.0.members[MEMBER]
    }

    async fn ballast(&self) -> Result<PathBuf, FixtureError> {
        let disk = self.member().disk().await.ok_or("the member has no separate disk")?;
        Ok(disk.join("ballast"))
    }
}

#[async_trait]
impl Fault for DiskFull {
    fn kind(&self) -> &'static str {
        FULL
    }

    async fn begin(&self) -> Result<(), FixtureError> {
        let member = self.member();
        // A member that lags behind is not elected. The disk of a secondary also fills up.
        let _ = member.admin(doc! { "replSetStepUp": 1 }).await;
        let ballast = self.ballast().await?;
        tokio::task::spawn_blocking(move || fill(&ballast)).await??;
        let deadline = Instant::now() + LIMIT;
        while !process::is_dead(member.pid()) {
            if Instant::now() > deadline {
                return Err("a server keeps running with a full disk".into());
            }
            // A secondary writes when the primary does, and at checkpoints.
            let bytes = std::iter::repeat_with(|| fastrand::u8(..)).take(WRITE).collect();
            let data = Binary { subtype: BinarySubtype::Generic, bytes };
            let probes = self.0.client.database("distlock_arena").collection("ballast");
            let write = probes.insert_one(doc! { "data": data });
            let _ = timeout(Duration::from_secs(1), async { write.await }).await;
            let _ = timeout(Duration::from_secs(2), member.admin(doc! { "fsync": 1 })).await;
        }
        Ok(())
    }

    async fn end(&self) -> Result<String, FixtureError> {
        std::fs::remove_file(self.ballast().await?)?;
        self.member().launch().await?;
        let ballast = self.0.client.database("distlock_arena").collection::<mongodb::bson::Document>("ballast");
        self.0.healthy().await?;
        ballast.drop().await?;
        Ok(format!("member {MEMBER} aborted: no space left on its disk"))
    }
}

/// Writes until the disk is full.
fn fill(file: &std::path::Path) -> std::io::Result<()> {
    let mut file = File::create(file)?;
    let block = vec![0x5A; 1 << 20];
    loop {
        let mut written = 0;
        while written < block.len() {
            match file.write(&block[written..]) {
                Ok(bytes @ 1..) => written += bytes,
                Ok(0) => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}
