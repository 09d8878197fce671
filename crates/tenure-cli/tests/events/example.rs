use tenure::port::{NewEvent, TopicSettings};
use tenure::{HandlerError, Tenure};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = "sqlite:tenure.db"; // or postgres://…, and a PgPool
    let tenure = Tenure::open(url).await?;
    let pool = sqlx::SqlitePool::connect(url).await?;
    let orders = tenure.publisher("orders")?;
    orders.create_topic(&TopicSettings::default()).await?;
    sqlx::raw_sql("CREATE TABLE sold (id INTEGER); CREATE TABLE booked (event INTEGER)").execute(&pool).await?;

    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO sold VALUES (7)").execute(&mut *tx).await?;
    let paid = NewEvent { key: Some("order-7".into()), ..NewEvent::new("order.paid") };
    orders.publish_in(&mut tx, &[paid]).await?;
    tx.commit().await?; // the row and the event, or neither

    let books = tenure
        .consumer("orders", "books")
        .transactional(&pool, |batch, mut tx| async move {
            for event in &batch {
                let id = i64::try_from(event.id.0)?;
                sqlx::query("INSERT INTO booked VALUES (?)").bind(id).execute(&mut *tx).await?;
                println!("{} of {:?}", event.event_type, event.key);
            }
            Ok::<_, HandlerError>(()) // an error rolls back and is retried; transient errors without limit
        })
        .start()
        .await?;

    tokio::signal::ctrl_c().await?;
    books.drain().await?; // finishes the batch and releases its partitions
    Ok(tenure.close().await?)
}
