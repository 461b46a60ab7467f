// server/page/page.h - the web page of the server: server/page/index.html, as bytes of the program.
#ifndef SLEIGH_PAGE_H
#define SLEIGH_PAGE_H

#include <stddef.h>

extern const unsigned char server_page[]; // [server_page_size] UTF-8, of the type text/html; without a NUL
extern const size_t server_page_size;

// The header Content-Security-Policy of the page: the browser runs the script and the style of this page alone, and they reach
// this server alone.
extern const char server_page_policy[];

#endif
