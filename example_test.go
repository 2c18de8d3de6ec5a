package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/schema"
)

// The usual way: business rows and message in one transaction.
func ExampleWriter_Write() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	defer pool.Close()

	var writer outbox.Writer
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// Lock the aggregate's row first, then write: so its messages keep the order of the locks.
		if _, err := tx.Exec(ctx, "UPDATE orders SET paid = true WHERE id = $1", "4711"); err != nil {
			return err
		}
		ids, err := writer.Write(ctx, tx,
			outbox.Message{Topic: "orders", AggregateType: "order",
				AggregateID: "4711", EventType: "OrderPaid", Payload: []byte(`{"id":"4711"}`)},
			outbox.Message{Topic: "emails", Key: "4711", Payload: []byte(`{"template":"receipt"}`)},
		)
		fmt.Println("messages:", len(ids))
		return err
	})
	fmt.Println("committed:", err == nil)

	// It prints:
	//	messages: 2
	//	committed: true
}

// With database/sql, and through it with sqlc, GORM, Bun and ent.
func ExampleWriter_WriteSQL() {
	ctx := context.Background()
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	defer db.Close()

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		panic(err)
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, "UPDATE orders SET paid = true WHERE id = $1", "4711"); err != nil {
		panic(err)
	}
	var writer outbox.Writer
	if _, err := writer.WriteSQL(ctx, tx, outbox.Message{Topic: "orders", Key: "4711", EventType: "OrderPaid"}); err != nil {
		panic(err)
	}
	fmt.Println("committed:", tx.Commit() == nil)

	// It prints:
	//	committed: true
}

// Thousands of messages, made on the way.
func ExampleWriter_Copy() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	defer conn.Close(ctx)

	var writer outbox.Writer
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		n, err := writer.Copy(ctx, tx, func(yield func(outbox.Message, error) bool) {
			for customer := range 10_000 {
				if !yield(outbox.Message{Topic: "newsletters", Key: fmt.Sprint(customer)}, nil) {
					return
				}
			}
		})
		fmt.Println("messages:", n)
		return err
	})
	fmt.Println("committed:", err == nil)

	// It prints:
	//	messages: 10000
	//	committed: true
}

// A relay in the same process is woken by the commit.
func ExampleWriter_InTx() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	defer conn.Close(ctx)

	writer, err := outbox.NewWriter(outbox.WriterConfig{
		Wake: func() { fmt.Println("woken") }, // the method Wake of a relay
	})
	if err != nil {
		panic(err)
	}
	err = writer.InTx(ctx, conn, func(tx pgx.Tx) error {
		_, err := writer.Write(ctx, tx, outbox.Message{Topic: "orders", Key: "4711"})
		return err
	})
	fmt.Println("committed:", err == nil)

	// It prints:
	//	woken
	//	committed: true
}

// What a broker would refuse later is refused before anything is sent.
func ExampleValidationError() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	defer conn.Close(ctx)

	var writer outbox.Writer
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := writer.Write(ctx, tx,
			outbox.Message{Topic: "orders"},
			outbox.Message{Payload: make([]byte, 2<<20)},
		)
		return err
	})
	fmt.Println(err)

	// It prints:
	//	outbox: write: message 1: Topic is empty, and every message needs one
	//	message 1: Payload has 2097152 bytes, the limit is 1000000
}

// A service that brings its own schema calls Up at its start; any number of instances may.
func Example_migrate() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	defer conn.Close(ctx)
	applied, err := schema.Up(ctx, conn, schema.UpConfig{})
	fmt.Println("applied:", len(applied), "error:", err)

	// It prints:
	//	applied: 0 error: <nil>
}

// The examples have no "Output:", because go test could run them only where a database is; this runs
// them against one, and compares what they say that they print.
func TestTheExamplesPrintWhatTheySay(t *testing.T) {
	url := database(t)
	conn := connect(t, url)
	if _, err := conn.Exec(t.Context(), `CREATE TABLE orders (id text PRIMARY KEY, paid boolean); INSERT INTO orders VALUES ('4711', false)`); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DATABASE_URL", url)
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for name, example := range map[string]func(){
		"ExampleWriter_Write":    ExampleWriter_Write,
		"ExampleWriter_WriteSQL": ExampleWriter_WriteSQL,
		"ExampleWriter_Copy":     ExampleWriter_Copy,
		"ExampleWriter_InTx":     ExampleWriter_InTx,
		"ExampleValidationError": ExampleValidationError,
		"Example_migrate":        Example_migrate,
	} {
		_, text, _ := strings.Cut(string(source), "func "+name+"() {")
		text, _, _ = strings.Cut(text, "\n}\n")
		_, want, found := strings.Cut(text, "\n\t// It prints:\n")
		want = strings.ReplaceAll(want+"\n", "\t//\t", "")
		if got := printed(t, example); !found || got != want {
			t.Errorf("%s printed\n%swant\n%s", name, got, want)
		}
	}
}

func printed(t *testing.T, example func()) string {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = write
	defer func() { os.Stdout = stdout }()
	example()
	_ = write.Close()
	text, err := io.ReadAll(read)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
