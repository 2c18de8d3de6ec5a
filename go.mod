module github.com/pgoutbox/outbox

go 1.25.0

require github.com/jackc/pgx/v5 v5.12.0
