use tenure::Tenure;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = "sqlite:tenure.db"; // or postgres://…, and a PgPool
    let tenure = Tenure::open(url).await?; // one session, one heartbeat, any number of elections
    let pool = sqlx::SqlitePool::connect(url).await?;
    sqlx::raw_sql("CREATE TABLE IF NOT EXISTS reports (token INTEGER)").execute(&pool).await?;

    let elector = tenure.elector("nightly").priority(100).start().await?; // the live candidate with the highest priority leads
    let report = elector.run_while_leader(|leadership| {
        let pool = pool.clone();
        // Dropped when leadership is lost; called again with the next term.
        async move {
            let mut tx = pool.begin().await?;
            leadership.guard(&mut tx).await?; // commits only while the lease is held
            let token = i64::try_from(leadership.token().as_u64())?;
            sqlx::query("INSERT INTO reports VALUES (?)").bind(token).execute(&mut *tx).await?;
            tx.commit().await?;
            println!("reported under token {token}");
            Ok::<_, Box<dyn std::error::Error>>(())
        }
    });
    report.await??;
    Ok(tenure.close().await?)
}
