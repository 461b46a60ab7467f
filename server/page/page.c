// server/page/page.c - puts index.html into the program. The assembler reads the file, so a page of any size compiles at once.
//
// The Makefile defines PAGE_SCRIPT and PAGE_STYLE: SHA-256 of the page's script and style in base64.
#include "server/page/page.h"

__asm__(".pushsection .rodata\n"
        ".global server_page\n.hidden server_page\n.type server_page, %object\n"
        "server_page:\n.incbin \"server/page/index.html\"\n"
        ".Lserver_page_end:\n.size server_page, . - server_page\n"
        ".balign 8\n"
        ".global server_page_size\n.hidden server_page_size\n.type server_page_size, %object\n"
        "server_page_size:\n.quad .Lserver_page_end - server_page\n.size server_page_size, 8\n"
        ".popsection\n");

_Static_assert(sizeof server_page_size == 8, "the size above has 8 bytes");

const char server_page_policy[] =
    "default-src 'none'; script-src 'sha256-" PAGE_SCRIPT "'; style-src 'sha256-" PAGE_STYLE "'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
