-- Checks of an endpoint's url without resolving host names: addresses that no dispatcher ever sends to, and
-- networks that a dispatcher sends to only if it is allowed to. A dispatcher also checks the address that it
-- connects to (push/egress.py).

-- Returns the IPv4 address of an IPv4-mapped IPv6 address; other addresses are returned unchanged.
create or replace function trunkline._plain_address(p_address inet) returns inet
language sql immutable
as $$ select case when p_address <<= '::ffff:0:0/96' then inet '0.0.0.0' + (p_address - inet '::ffff:0:0') else p_address end $$;

-- Returns the address of a url's host, or null if the host is a name. network: the network of the host, if
-- dispatchers do not send to it by default. never: no dispatcher may be allowed to send there, or the host is
-- not a valid address (network is then null).
create or replace function trunkline._url_target(p_url text, out address inet, out network cidr, out never boolean)
language plpgsql immutable
as $$
declare
    v_host text := lower(substring(p_url from '^https?://(\[[^]]*\]|[^/?:]*)'));
begin
    never := false;
    if v_host ~ '^\[.*:.*\]$' or v_host ~ '^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+$' then
        address := trunkline._plain_address(btrim(v_host, '[]')::inet);
    elsif v_host ~ '(^|\.)localhost\.?$' then
        network := '127.0.0.0/8';
    end if;
    if address is not null then
        -- Includes IPv6 addresses that lead to these networks (NAT64, 6to4).
        select n into network from unnest(array['0.0.0.0/8', '100.100.100.200/32', '168.63.129.16/32', '169.254.0.0/16', '224.0.0.0/4', '255.255.255.255/32', '::/128', 'fe80::/10',
                                                'fec0::/10', 'ff00::/8', 'fd00:ec2::/32', '64:ff9b::/104', '64:ff9b::6464:64c8/128', '64:ff9b::a83f:8110/128', '64:ff9b::a9fe:0/112',
                                                '64:ff9b::e000:0/100', '64:ff9b::ffff:ffff/128', '2002::/24', '2002:6464:64c8::/48', '2002:a83f:8110::/48', '2002:a9fe::/32',
                                                '2002:e000::/20', '2002:ffff:ffff::/48']::cidr[]) n
        where address <<= n;
        never := network is not null;
        if not never then
            select n into network from unnest(array['10.0.0.0/8', '100.64.0.0/10', '127.0.0.0/8', '172.16.0.0/12', '192.0.0.0/24', '192.0.2.0/24', '192.31.196.0/24',
                '192.52.193.0/24', '192.88.99.0/24', '192.168.0.0/16', '192.175.48.0/24', '198.18.0.0/15', '198.51.100.0/24', '203.0.113.0/24', '240.0.0.0/4',
                '2001::/23', '2001:db8::/32', '2002::/16', '3fff::/20', '::1/128', '::/96', '64:ff9b::/96', '64:ff9b:1::/48', '100::/64', 'fc00::/7']::cidr[]) n
            where address <<= n order by masklen(n) desc limit 1;
            if network is null and family(address) = 6 and not address <<= '2000::/3' then
                network := network(set_masklen(address, 16));
            end if;
        end if;
    end if;
exception when invalid_text_representation then
    -- Not a valid address; _check_url raises the error.
    never := true;
end
$$;

-- Raises TL001 for a url that no dispatcher would send to. The error does not repeat the url, which may
-- contain a password.
create or replace function trunkline._check_url(p_url text) returns void
language plpgsql
as $$
declare
    v_place text := substring(p_url from '^https?://([^/?]*)');
    v_host  text := substring(v_place from '^(\[[0-9A-Fa-f:.]+\]|[^]:[]+)(?::[0-9]+)?$');
    v_port  text := substring(v_place from ':([0-9]+)$');
    t       record;
begin
    if p_url is null or length(p_url) > 2000 or p_url !~ '^https?://[^/?#@[:space:]\\]+([/?][^#[:space:][:cntrl:]]*)?$' then
        perform trunkline._fail('TL001', 'URL must be http:// or https:// with a host, without credentials, fragment or spaces, at most 2,000 characters',
                                'Correct the URL, and move credentials to the headers of the endpoint.');
    end if;
    if v_host is null or (v_host !~ '^\[' and v_host !~ '^[A-Za-z0-9._-]+$') then
        perform trunkline._fail('TL001', 'URL host must be an ASCII name or an IP address',
                                'Write the host as a name (in its xn-- form), 192.0.2.7 or [2001:db8::7], and append :port unless it is the default port.');
    end if;
    if v_port is not null and v_host <> v_place then
        perform trunkline._check_range('URL port', left(v_port, 20)::numeric, 1, 65535);
    end if;
    t := trunkline._url_target(p_url);
    if t.network is null and t.never or t.address is null and v_host ~ '(^|\.)([0-9]+|0[xX][0-9a-fA-F]*)\.?$'
       or t.address is not null and v_host ~ '(^|\.)0[0-9]' then
        perform trunkline._fail('TL001', 'URL host is numeric, but not an IP address in standard form',
                                'Write the address as 192.0.2.7 or [2001:db8::7].');
    elsif t.never then
        perform trunkline._fail('TL001', format('cannot send webhooks to %s: network %s is never allowed', v_host, t.network),
                                'Use a public address, or a private network listed in --push-allow.');
    end if;
end
$$;

-- Returns the network that a dispatcher must be allowed to send to (--push-allow, TRUNKLINE_PUSH_ALLOW)
-- before it sends to this url. Returns null if it needs no permission, or if the address can never be
-- allowed. Host names are not resolved, except that localhost is 127.0.0.0/8.
create or replace function trunkline.needed_network(p_url text) returns text
language sql immutable
as $$ select t.network::text from trunkline._url_target(p_url) t where not t.never $$;
