//! The library against servers: one binary, so that it links once.

mod simulation;

#[tokio::test]
async fn smoke() {
    let server = lockkeeper_server::Server::ephemeral().await.unwrap();
    let keeper = lockkeeper::Lockkeeper::connect(&server.connect_string()).await.unwrap();
    let m = keeper.mutex("/locks/a");
    let t = std::time::Instant::now();
    let g = m.acquire().await.unwrap();
    println!("{:?} {:?}", t.elapsed(), g);
    let e = m.try_acquire().message("x").await.unwrap_err();
    println!("{e}");
    let e = m.acquire().timeout(std::time::Duration::from_millis(300)).await.unwrap_err();
    println!("{e}");
    let m2 = m.clone();
    let w = tokio::spawn(async move { m2.acquire().await });
    let mut f = keeper.admin().follow("/locks/a");
    while f.next().await.unwrap().waiters.is_empty() {}
    println!("{:#?}", keeper.admin().show("/locks/a").await.unwrap());
    g.release().await.unwrap();
    let g = w.await.unwrap().unwrap();
    println!("{g:?}");
    drop(g);
    let t = std::time::Instant::now();
    for _ in 0..1000 {
        m.acquire().await.unwrap().release().await.unwrap();
    }
    println!("1000 cycles {:?}", t.elapsed());
    let t = std::time::Instant::now();
    for _ in 0..1000 {
        drop(m.acquire().await.unwrap());
    }
    println!("1000 cycles, drop {:?}", t.elapsed());
    keeper.close().await;
    println!("{:?}", server.stats());
    println!(
        "{:?}",
        lockkeeper::Lockkeeper::builder()
            .connect_timeout(std::time::Duration::from_secs(1))
            .connect("127.0.0.1:1")
            .await
            .unwrap_err()
            .to_string()
    );
}

#[tokio::test]
async fn embedded_smoke() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = lockkeeper::Lockkeeper::embedded(dir.path()).await.unwrap();
    let other = lockkeeper::Lockkeeper::embedded(dir.path()).await.unwrap();
    let g = keeper.mutex("/locks/a").acquire().await.unwrap();
    println!("{}", other.mutex("/locks/a").try_acquire().await.unwrap_err());
    drop(g);
    let g = other.mutex("/locks/a").acquire().await.unwrap();
    println!("{:?}", g);
    g.release().await.unwrap();
    other.close().await;
    keeper.close().await;
    let keeper = lockkeeper::Lockkeeper::embedded(dir.path()).await.unwrap();
    keeper.mutex("/locks/a").acquire().await.unwrap().release().await.unwrap();
}
